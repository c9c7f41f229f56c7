import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.minikdc.MiniKdc;
import org.apache.kerby.KOptions;
import org.apache.kerby.kerberos.kerb.client.KrbClient;
import org.apache.kerby.kerberos.kerb.client.KrbOption;

/**
 * A server of Kerberos on loopback, with the services of an HDFS there, and a user. Argument: the
 * directory of its files, which are `krb5.conf` and the keytabs `services` and `user`.
 *
 * <p>`FILE SECONDS` on standard input writes a ticket of the user that is valid for so long, as
 * `kinit` does, and is answered with `done` or `failed: why`.
 */
public class Kdc {
  public static void main(String[] arguments) throws Exception {
    File directory = new File(arguments[0]);
    File services = new File(directory, "services");
    File user = new File(directory, "user");
    MiniKdc kdc = new MiniKdc(MiniKdc.createConf(), directory);
    kdc.start();
    kdc.createPrincipal(services, "hdfs/localhost", "HTTP/localhost");
    kdc.createPrincipal(user, arguments[1]);
    File conf = kdc.getKrb5conf();
    Files.copy(conf.toPath(), Path.of(arguments[0], "krb5.conf"));
    System.out.println("done");
    BufferedReader lines =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      try {
        String[] words = line.split(" ");
        KrbClient client = new KrbClient(conf.getParentFile());
        client.init();
        KOptions options = new KOptions();
        options.add(KrbOption.CLIENT_PRINCIPAL, arguments[1] + "@" + kdc.getRealm());
        options.add(KrbOption.USE_KEYTAB, true);
        options.add(KrbOption.KEYTAB_FILE, user);
        options.add(KrbOption.LIFE_TIME, Integer.parseInt(words[1]));
        client.storeTicket(client.requestTgt(options), new File(words[0]));
        System.out.println("done");
      } catch (Throwable error) { // who asked is told
        System.out.println("failed: " + error);
      }
      System.out.flush();
    }
    System.exit(0);
  }
}
