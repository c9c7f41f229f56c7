import java.util.Arrays;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.conf.MetastoreConf;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;

/**
 * A metastore of Hive 3 whose database also has the tables of locks, as Hive's scripts make them.
 * Arguments: the database's URL, and those of the metastore.
 */
public class Metastore {
  public static void main(String[] arguments) throws Throwable {
    Configuration conf = MetastoreConf.newMetastoreConf();
    MetastoreConf.setVar(conf, MetastoreConf.ConfVars.CONNECT_URL_KEY, arguments[0]);
    TxnDbUtil.prepDb(conf);
    HiveMetaStore.main(Arrays.copyOfRange(arguments, 1, arguments.length));
  }
}
