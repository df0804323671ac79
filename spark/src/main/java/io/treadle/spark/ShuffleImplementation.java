package io.treadle.spark;

import org.apache.spark.ShuffleDependency;
import org.apache.spark.TaskContext;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.shuffle.ShuffleReader;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.shuffle.ShuffleWriter;

/**
 * What does the work for {@link TreadleShuffleManager}. That of the jar is one, and {@link Implementations} loads others.
 *
 * <p>An implementation is the class {@link #CLASS}, with a public constructor of a {@code SparkConf} and a {@code boolean}
 * (whether this is the driver), which does nothing else. It may use this package, and its own.
 */
public interface ShuffleImplementation {
  /** Of what is public in this package. It rises with each change that counts; a jar says for which it is made. */
  int INTERFACE = 1;

  /** What is loaded, with all others of its package. */
  String CLASS = "io.treadle.spark.service.ServiceShuffles";

  /**
   * Loads what it needs on this machine.
   *
   * @throws LinkageError if it cannot
   */
  void load();

  /**
   * Looks at the settings, and sets what follows from them, before Spark reads it. In the driver.
   *
   * @throws IllegalArgumentException if one is wrong: its name, and what it must be
   */
  void begin();

  /**
   * Registers a shuffle. In the driver.
   *
   * @return what writers and readers must know of it, which travels with each task; null: its rows are in files of executors
   */
  byte[] registerShuffle(int shuffleId, ShuffleDependency<?, ?, ?> dependency);

  /**
   * What tasks that begin now must know of a shuffle. It may have been unregistered since it was registered: then it is used
   * again, without any row. In the driver, and quick.
   */
  default byte[] renew(TreadleShuffleHandle<?, ?, ?> handle) {
    return handle.about();
  }

  <K, V, C> ShuffleWriter<K, V> getWriter(
      TreadleShuffleHandle<K, V, C> handle,
      long mapId,
      TaskContext context,
      ShuffleWriteMetricsReporter metrics);

  <K, V, C> ShuffleReader<K, C> getReader(
      TreadleShuffleHandle<K, V, C> handle,
      int firstMap,
      int endMap,
      int firstPartition,
      int endPartition,
      TaskContext context,
      ShuffleReadMetricsReporter metrics);

  void unregisterShuffle(int shuffleId);

  void stop();
}
