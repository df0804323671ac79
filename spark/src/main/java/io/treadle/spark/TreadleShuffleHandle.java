package io.treadle.spark;

import org.apache.spark.ShuffleDependency;
import org.apache.spark.shuffle.BaseShuffleHandle;
import scala.Option;

/** Marks a shuffle of the service. It travels with each task. */
public final class TreadleShuffleHandle<K, V, C> extends BaseShuffleHandle<K, V, C> {
  private static final long serialVersionUID = 2L;

  /** What the implementation in the driver says to those in executors. */
  private final byte[] about;

  /** Which implementation that is; null: the one in the jar. */
  final ImplementationSource implementation;

  TreadleShuffleHandle(
      int shuffleId,
      ShuffleDependency<K, V, C> dependency,
      byte[] about,
      ImplementationSource implementation) {
    super(shuffleId, dependency);
    this.about = about;
    this.implementation = implementation;
  }

  public byte[] about() {
    return about;
  }

  /** Releases of Spark after 4.3 ask each shuffle. */
  public Option<Object> reliablyStored() {
    return Option.apply(Boolean.TRUE);
  }
}
