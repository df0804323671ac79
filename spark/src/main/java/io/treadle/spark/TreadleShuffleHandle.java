package io.treadle.spark;

import org.apache.spark.ShuffleDependency;
import org.apache.spark.shuffle.BaseShuffleHandle;
import scala.Option;

/** Marks a shuffle of the service, and says where it is. It travels with each task. */
final class TreadleShuffleHandle<K, V, C> extends BaseShuffleHandle<K, V, C> {
  private static final long serialVersionUID = 1L;

  /** Where the master of the application is. */
  final String master;

  /** The number of the application in the service, and that of the shuffle. */
  final long application;

  final long number;
  final int maps;
  final int partitions;

  /** Whether each row is a record. Otherwise what a map has for a partition is a stream. */
  final boolean hasRecords;

  TreadleShuffleHandle(
      int shuffleId,
      ShuffleDependency<K, V, C> dependency,
      String master,
      long application,
      long number,
      int maps,
      boolean hasRecords) {
    super(shuffleId, dependency);
    this.master = master;
    this.application = application;
    this.number = number;
    this.maps = maps;
    this.partitions = dependency.partitioner().numPartitions();
    this.hasRecords = hasRecords;
  }

  /** Releases of Spark after 4.3 ask each shuffle. */
  public Option<Object> reliablyStored() {
    return Option.apply(Boolean.TRUE);
  }
}
