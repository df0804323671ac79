package io.treadle.spark;

import java.util.Locale;
import org.apache.spark.SparkConf;

/** What users set, and what follows from Spark's own settings. */
final class Settings {
  static final String SERVERS = "spark.treadle.servers";
  static final String SECRET_FILE = "spark.treadle.secretFile";
  static final String TLS_AUTHORITY = "spark.treadle.tls.ca";
  static final String TLS_CERTIFICATE = "spark.treadle.tls.certificate";
  static final String TLS_KEY = "spark.treadle.tls.key";
  static final String INSECURE = "spark.treadle.insecure";
  static final String DRIVER_ADDRESS = "spark.treadle.driver.address";
  static final String COPIES = "spark.treadle.copies";
  static final String COMPRESSION = "spark.treadle.compression";
  static final String TIMEOUT = "spark.treadle.timeout";
  static final String CONNECT_TIMEOUT = "spark.treadle.connectTimeout";

  private final SparkConf conf;

  Settings(SparkConf conf) {
    this.conf = conf;
  }

  /** The address of the registry; null: none is set. */
  String servers() {
    return conf.get(SERVERS, null);
  }

  /** What {@link Native#connect} takes. */
  String[] connection() {
    return new String[] {
      conf.get(SECRET_FILE, null),
      conf.get(TLS_AUTHORITY, null),
      conf.get(TLS_CERTIFICATE, null),
      conf.get(TLS_KEY, null),
      conf.get(DRIVER_ADDRESS, null),
    };
  }

  boolean insecure() {
    return conf.getBoolean(INSECURE, false);
  }

  int copies() {
    return conf.getInt(COPIES, 2);
  }

  /** How long a call may take. */
  long timeoutMillis() {
    return 1000 * conf.getTimeAsSeconds(TIMEOUT, "600s");
  }

  /** How long the driver waits for the service before it takes stock's shuffles. */
  long connectMillis() {
    return 1000 * conf.getTimeAsSeconds(CONNECT_TIMEOUT, "30s");
  }

  boolean encrypts() {
    return conf.getBoolean("spark.io.encryption.enabled", false);
  }

  /** Whether a map is numbered by its index, which names no attempt. */
  boolean hasOldFetchProtocol() {
    return conf.getBoolean("spark.shuffle.useOldFetchProtocol", false);
  }

  /** What compresses records; null: nothing. */
  String codec() {
    String unsaid = "none";
    if (conf.getBoolean("spark.shuffle.compress", true)) {
      unsaid = conf.get("spark.io.compression.codec", "lz4").toLowerCase(Locale.ROOT).endsWith("zstd") ? "zstd" : "lz4";
    }
    String codec = conf.get(COMPRESSION, unsaid);
    return codec.equals("none") ? null : codec;
  }
}
