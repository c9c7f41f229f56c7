import java.io.BufferedReader;
import java.io.File;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Deque;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.SafeModeAction;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSNNTopology;
import org.apache.hadoop.hdfs.protocol.HdfsConstants;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler;

/**
 * HDFS with two data nodes. Arguments: the directory of its files, for each name node the port for
 * RPC and that for HTTP, and `key=value` of Hadoop's configuration. Two name nodes make the name
 * service `prod`, the first of them active.
 *
 * <p>Takes one command a line from standard input, and answers each with `done` or `failed: why`.
 */
public class Cluster {
  private final MiniDFSCluster cluster;
  private final int numNameNodes;
  private final Deque<MiniDFSCluster.DataNodeProperties> stopped = new ArrayDeque<>();

  Cluster(String[] arguments) throws Exception {
    Configuration conf = new Configuration();
    conf.set("hdfs.minidfs.basedir", arguments[0]);
    // Name nodes hear of a stopped data node within seconds, not after 10.5 minutes.
    conf.setLong("dfs.heartbeat.interval", 1);
    conf.setInt("dfs.namenode.heartbeat.recheck-interval", 1000);
    int numPorts = 0;
    for (int i = 1; i < arguments.length; i++) {
      String[] pair = arguments[i].split("=", 2);
      if (pair.length == 2) {
        conf.set(pair[0], pair[1]);
      } else {
        numPorts++;
      }
    }
    UserGroupInformation.setConfiguration(conf);
    numNameNodes = numPorts / 2;
    MiniDFSCluster.Builder builder = new MiniDFSCluster.Builder(conf).numDataNodes(2);
    if (numNameNodes == 1) {
      builder.nameNodePort(Integer.parseInt(arguments[1]));
      builder.nameNodeHttpPort(Integer.parseInt(arguments[2]));
    } else {
      MiniDFSNNTopology.NSConf service = new MiniDFSNNTopology.NSConf("prod");
      for (int i = 0; i < numNameNodes; i++) {
        service.addNN(
            new MiniDFSNNTopology.NNConf("nn" + i)
                .setIpcPort(Integer.parseInt(arguments[1 + 2 * i]))
                .setHttpPort(Integer.parseInt(arguments[2 + 2 * i])));
      }
      builder.nnTopology(new MiniDFSNNTopology().addNameservice(service));
      // By this a data node knows that `prod` is a service.
      conf.set(
          "dfs.client.failover.proxy.provider.prod",
          "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider");
    }
    cluster = builder.build();
    cluster.waitActive();
    if (numNameNodes > 1) {
      cluster.transitionToActive(0);
    }
  }

  private DistributedFileSystem files() throws Exception {
    for (int i = 0; i < numNameNodes; i++) {
      if (cluster.getNameNode(i) != null && cluster.getNameNode(i).isActiveState()) {
        return cluster.getFileSystem(i);
      }
    }
    throw new IllegalStateException("no name node is active");
  }

  private void run(String... words) throws Exception {
    int number = words.length > 1 && words[1].matches("\\d+") ? Integer.parseInt(words[1]) : -1;
    switch (words[0]) {
      // Those after it get smaller numbers; one that is started gets the last.
      case "stop-data" -> stopped.push(cluster.stopDataNode(number));
      case "start-data" -> cluster.restartDataNode(stopped.pop(), true);
      case "stop-name" -> cluster.shutdownNameNode(number);
      case "start-name" -> cluster.restartNameNode(number, false);
      case "standby" -> cluster.transitionToStandby(number);
      case "active" -> cluster.transitionToActive(number);
      case "safe-mode" -> files().setSafeMode(SafeModeAction.valueOf(words[1]));
      case "mkdir" -> {
        files().mkdirs(new Path(words[1]));
        files().setOwner(new Path(words[1]), words[2], null);
      }
      case "chmod" -> files().setPermission(new Path(words[2]), new FsPermission(words[1]));
      case "quota" ->
          files().setQuota(
              new Path(words[2]), HdfsConstants.QUOTA_DONT_SET, Long.parseLong(words[1]));
      case "yarn" -> startYarn(new File(words[1]));
      // Hadoop's own client: `hdfs dfs -get`.
      case "get" -> files().copyToLocalFile(false, new Path(words[1]), new Path(words[2]), true);
      default -> throw new IllegalArgumentException(words[0]);
    }
  }

  /** Starts a YARN of one host over the HDFS, and writes its configuration for clients. */
  private void startYarn(File directory) throws Exception {
    YarnConfiguration conf = new YarnConfiguration();
    conf.set("fs.defaultFS", cluster.getURI().toString());
    conf.setInt("yarn.scheduler.minimum-allocation-mb", 256);
    conf.setInt("yarn.minicluster.yarn.nodemanager.resource.memory-mb", 6144);
    conf.setInt("yarn.nodemanager.resource.cpu-vcores", 8);
    conf.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
    conf.setBoolean("yarn.nodemanager.pmem-check-enabled", false);
    // Tests run on disks that are almost full, too.
    String disks = "yarn.nodemanager.disk-health-checker.";
    conf.setFloat(disks + "max-disk-utilization-per-disk-percentage", 99.9f);
    conf.set("yarn.resourcemanager.scheduler.class", FifoScheduler.class.getName());
    MiniYARNCluster yarn = new MiniYARNCluster("yarn", 1, 1, 1);
    yarn.init(conf);
    yarn.start();
    yarn.waitForNodeManagersToConnect(20_000);
    try (OutputStream file = new FileOutputStream(new File(directory, "yarn-site.xml"))) {
      yarn.getConfig().writeXml(file);
    }
  }

  public static void main(String[] arguments) throws Exception {
    Cluster cluster = new Cluster(arguments);
    System.out.println("done");
    BufferedReader lines =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      try {
        cluster.run(line.split(" "));
        System.out.println("done");
      } catch (Throwable error) { // who asked is told
        System.out.println("failed: " + error);
      }
      System.out.flush();
    }
    System.exit(0);
  }
}
