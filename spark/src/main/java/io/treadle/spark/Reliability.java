package io.treadle.spark;

/** Whether all shuffles of the application in this JVM are at the service. Spark asks for the application as a whole. */
final class Reliability {
  private static volatile boolean isReliable = true;

  private Reliability() {}

  static void begin() {
    isReliable = true;
  }

  /** A shuffle is in files of executors. */
  static void lost() {
    isReliable = false;
  }

  static boolean holds() {
    return isReliable;
  }
}
