package io.treadle.spark;

import java.util.concurrent.atomic.AtomicInteger;

/** Whether all shuffles of the application in this JVM are at the service. Spark asks for the application as a whole. */
public final class Reliability {
  private static final AtomicInteger FALLBACKS = new AtomicInteger();

  private Reliability() {}

  static void begin() {
    FALLBACKS.set(0);
  }

  /** A shuffle is in files of executors. */
  public static void lost() {
    FALLBACKS.incrementAndGet();
  }

  /** How many shuffles are. */
  public static int fallbacks() {
    return FALLBACKS.get();
  }

  static boolean holds() {
    return fallbacks() == 0;
  }
}
