package io.treadle.spark.service;

import java.io.File;
import java.util.Arrays;
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
  static final String PLACE = "spark.treadle.place";
  static final String EXPECTED = "spark.treadle.expectedBytes";
  static final String COMPRESSION = "spark.treadle.compression";
  static final String TIMEOUT = "spark.treadle.timeout";
  static final String CONNECT_TIMEOUT = "spark.treadle.connectTimeout";

  private static final int MOST_PARTS = 64;
  private static final String[] TLS = {TLS_AUTHORITY, TLS_CERTIFICATE, TLS_KEY};

  private final SparkConf conf;

  Settings(SparkConf conf) {
    this.conf = conf;
  }

  /**
   * Looks at all of them, before anything is started.
   *
   * @throws IllegalArgumentException if one is wrong: its name, and what it must be
   */
  void check() {
    for (String file : new String[] {SECRET_FILE, TLS_AUTHORITY, TLS_CERTIFICATE, TLS_KEY}) {
      checkFile(file);
    }
    if (Arrays.stream(TLS).anyMatch(conf::contains)) {
      for (String file : TLS) {
        require(conf.contains(file), file, "is not set: give all three of tls, or none");
      }
    }
    insecure();
    expectedBytes();
    String place = place();
    require(place == null || isPlace(place), PLACE, "is " + place + ": it is a part of the servers, such as 1/2");
    require(copies() == 1 || copies() == 2, COPIES, "is " + copies() + ": it can be 1 or 2");
    String codec = conf.get(COMPRESSION, "none");
    boolean isKnown = Arrays.asList("lz4", "zstd", "none").contains(codec);
    require(isKnown, COMPRESSION, "is " + codec + ": it can be lz4, zstd or none");
    require(timeoutMillis() > 0, TIMEOUT, "is less than a second");
    require(connectMillis() > 0, CONNECT_TIMEOUT, "is less than a second");
  }

  private void checkFile(String setting) {
    String file = conf.get(setting, null);
    if (file == null) {
      return;
    }
    // Spark shows values of settings, so that the text says no more than the name.
    require(
        !file.contains("-----BEGIN"),
        setting,
        "is the text of a certificate or of a key, which Spark would show: give the name of a file");
    File named = new File(file);
    boolean isReadable = named.canRead() && !named.isDirectory();
    require(isReadable, setting, "is " + file + ": there is no file that can be read");
  }

  private static void require(boolean is, String setting, String otherwise) {
    if (!is) {
      throw new IllegalArgumentException(setting + " " + otherwise);
    }
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
      place(),
    };
  }

  boolean insecure() {
    return conf.getBoolean(INSECURE, false);
  }

  /** The part of the servers where shuffles are to be; null: all. */
  private String place() {
    String place = conf.get(PLACE, "").trim();
    return place.isEmpty() ? null : place;
  }

  private static boolean isPlace(String place) {
    if (!place.matches("[0-9]{1,2}/[0-9]{1,2}")) {
      return false;
    }
    String[] numbers = place.split("/");
    int part = Integer.parseInt(numbers[0]);
    int parts = Integer.parseInt(numbers[1]);
    return 0 < part && part <= parts && parts <= MOST_PARTS;
  }

  int copies() {
    return conf.getInt(COPIES, 2);
  }

  /** Bytes that a shuffle may push; 0: nobody knows. */
  long expectedBytes() {
    return Math.max(0, conf.getSizeAsBytes(EXPECTED, 0L));
  }

  /** How long a call may take. */
  long timeoutMillis() {
    return 1000 * conf.getTimeAsSeconds(TIMEOUT, "600s");
  }

  /** How long the driver waits for the service before it takes stock's shuffles. */
  long connectMillis() {
    return 1000 * conf.getTimeAsSeconds(CONNECT_TIMEOUT, "30s");
  }

  /** Whether executors come and go. */
  boolean isDynamic() {
    return conf.getBoolean("spark.dynamicAllocation.enabled", false);
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
