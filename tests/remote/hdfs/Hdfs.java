import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** A NameNode and a DataNode with real sockets and files, until standard input ends. Prints its URLs. */
public final class Hdfs {
    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new Configuration();
        configuration.set("dfs.replication", "1");
        configuration.set("hadoop.security.authentication", "simple");
        File folder = new File(arguments[0]);
        MiniDFSCluster cluster =
                new MiniDFSCluster.Builder(configuration, folder).numDataNodes(1).build();
        cluster.waitActive();
        System.out.println(
                "webhdfs://127.0.0.1:" + cluster.getNameNode().getHttpAddress().getPort());
        System.out.println("hdfs://127.0.0.1:" + cluster.getNameNodePort());
        while (System.in.read() >= 0) {
            // What starts this closes its end.
        }
        cluster.shutdown(true);
    }
}
