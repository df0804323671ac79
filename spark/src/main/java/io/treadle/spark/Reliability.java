package io.treadle.spark;

import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.IntSupplier;

/** Whether all shuffles of the application in this JVM are at the service. Spark asks for the application as a whole. */
public final class Reliability {
  private static final AtomicInteger FALLBACKS = new AtomicInteger();

  /** Of the application whose shuffles are at the service; null: there is none yet. */
  private static volatile IntSupplier servers;

  private Reliability() {}

  static void begin() {
    FALLBACKS.set(0);
    servers = null;
  }

  /** Says how many servers with rows of the application were lost. */
  public static void countLostServers(IntSupplier count) {
    servers = count;
  }

  /** How many were, as far as the application's master remembers its shuffles. */
  static int lostServers() {
    IntSupplier count = servers;
    return count == null ? 0 : count.getAsInt();
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
