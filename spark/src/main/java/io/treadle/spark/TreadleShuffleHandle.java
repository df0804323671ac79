package io.treadle.spark;

import java.io.IOException;
import java.io.ObjectOutputStream;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.shuffle.BaseShuffleHandle;
import scala.Option;

/** Marks a shuffle of the service. It travels with each task. */
public final class TreadleShuffleHandle<K, V, C> extends BaseShuffleHandle<K, V, C> {
  private static final long serialVersionUID = 2L;

  /** What the implementation in the driver says to those in executors. */
  private byte[] about;

  /** Which implementation that is; null: the one in the jar. */
  final ImplementationSource implementation;

  /** In the driver alone. */
  private final transient ShuffleImplementation owner;

  TreadleShuffleHandle(
      int shuffleId,
      ShuffleDependency<K, V, C> dependency,
      byte[] about,
      ImplementationSource implementation,
      ShuffleImplementation owner) {
    super(shuffleId, dependency);
    this.about = about;
    this.implementation = implementation;
    this.owner = owner;
  }

  public synchronized byte[] about() {
    return about;
  }

  /** Spark runs maps again of a shuffle that it has removed, and their tasks have this handle. */
  private synchronized void writeObject(ObjectOutputStream out) throws IOException {
    if (owner != null) {
      about = owner.renew(this);
    }
    out.defaultWriteObject();
  }

  /** Releases of Spark after 4.3 ask each shuffle. */
  public Option<Object> reliablyStored() {
    return Option.apply(Boolean.TRUE);
  }
}
