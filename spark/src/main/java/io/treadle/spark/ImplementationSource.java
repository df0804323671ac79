package io.treadle.spark;

import java.io.File;
import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import org.apache.spark.SparkEnv;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Where an implementation is from, and its digest, by which all processes of an application have the same one. */
final class ImplementationSource implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final Logger LOG = LoggerFactory.getLogger(ImplementationSource.class);

  /** The jar. */
  final String url;

  /** Its SHA-256, as 64 digits. */
  final String digest;

  /** In the driver alone, until it is a file there. */
  private transient byte[] jar;

  /** Where the driver has it for executors; null: nowhere. */
  private String atDriver;

  ImplementationSource(String url, String digest, byte[] jar) {
    this.url = url;
    this.digest = digest;
    this.jar = jar;
  }

  byte[] jar() {
    return jar;
  }

  String atDriver() {
    return atDriver;
  }

  static boolean areSame(ImplementationSource one, ImplementationSource other) {
    return one == null || other == null ? one == other : one.digest.equals(other.digest);
  }

  /** Has the driver's file server give it to executors that cannot read the URL. A second time has no effect. */
  void serve(SparkEnv env) {
    if (atDriver != null || env.driverTmpDir().isEmpty()) {
      return;
    }
    try {
      Path folder = Paths.get(env.driverTmpDir().get());
      Path file = folder.resolve("treadle-spark-" + digest + ".jar");
      Files.write(file, jar);
      atDriver = env.rpcEnv().fileServer().addFile(new File(file.toString()));
      jar = null;
    } catch (IOException | RuntimeException error) {
      LOG.warn("Executors get {} from there alone: {}", url, error.toString());
    }
  }

  @Override
  public String toString() {
    return url + " (sha256 " + digest + ")";
  }
}
