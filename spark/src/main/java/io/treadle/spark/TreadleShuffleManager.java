package io.treadle.spark;

import io.treadle.spark.service.ServiceShuffles;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.shuffle.ShuffleHandle;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.shuffle.ShuffleReader;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.shuffle.ShuffleWriter;
import org.apache.spark.shuffle.sort.SortShuffleManager;

/**
 * Spark's shuffles on Treadle's shuffle service: {@code spark.shuffle.manager}.
 *
 * <p>It is a {@link SortShuffleManager}, since Spark copies each row for others, and since a shuffle that cannot be at the
 * service is written as without Treadle. The rest does a {@link ShuffleImplementation}, which the driver chooses.
 */
public class TreadleShuffleManager extends SortShuffleManager {
  private final SparkConf conf;

  /** null: this executor has had no shuffle yet. */
  private ShuffleImplementation implementation;

  /** Where it is from; null: the jar. */
  private ImplementationSource source;

  public TreadleShuffleManager(SparkConf conf, boolean isDriver) {
    super(conf);
    this.conf = conf;
    if (isDriver) {
      Reliability.begin();
      CoordinatorReport.enable(conf);
      Implementations.Loaded loaded = Implementations.chosen(conf);
      source = loaded == null ? null : loaded.source;
      implementation = loaded == null ? new ServiceShuffles(conf, true) : loaded.implementation;
      implementation.begin();
    }
  }

  /** The one that the driver has chosen. An executor loads it with its first shuffle. */
  private synchronized ShuffleImplementation implementation(TreadleShuffleHandle<?, ?, ?> handle) {
    if (implementation == null) {
      source = handle.implementation;
      implementation =
          source == null
              ? new ServiceShuffles(conf, false)
              : Implementations.loaded(source, conf, SparkEnv.get().rpcEnv());
    }
    if (!ImplementationSource.areSame(source, handle.implementation)) {
      throw new IllegalStateException(
          "a shuffle of another implementation than " + source + ": " + handle.implementation);
    }
    return implementation;
  }

  @Override
  public <K, V, C> ShuffleHandle registerShuffle(
      int shuffleId, ShuffleDependency<K, V, C> dependency) {
    byte[] about = implementation.registerShuffle(shuffleId, dependency);
    if (about == null) {
      return super.registerShuffle(shuffleId, dependency);
    }
    synchronized (this) {
      if (source != null) {
        source.serve(SparkEnv.get());
      }
    }
    return new TreadleShuffleHandle<>(shuffleId, dependency, about, source, implementation);
  }

  @Override
  @SuppressWarnings("unchecked")
  public <K, V> ShuffleWriter<K, V> getWriter(
      ShuffleHandle handle, long mapId, TaskContext context, ShuffleWriteMetricsReporter metrics) {
    if (!(handle instanceof TreadleShuffleHandle)) {
      return super.getWriter(handle, mapId, context, metrics);
    }
    TreadleShuffleHandle<K, V, Object> own = (TreadleShuffleHandle<K, V, Object>) handle;
    return implementation(own).getWriter(own, mapId, context, metrics);
  }

  @Override
  @SuppressWarnings("unchecked")
  public <K, C> ShuffleReader<K, C> getReader(
      ShuffleHandle handle,
      int firstMap,
      int endMap,
      int firstPartition,
      int endPartition,
      TaskContext context,
      ShuffleReadMetricsReporter metrics) {
    if (!(handle instanceof TreadleShuffleHandle)) {
      return super.getReader(
          handle, firstMap, endMap, firstPartition, endPartition, context, metrics);
    }
    TreadleShuffleHandle<K, Object, C> own = (TreadleShuffleHandle<K, Object, C>) handle;
    return implementation(own)
        .getReader(own, firstMap, endMap, firstPartition, endPartition, context, metrics);
  }

  @Override
  public boolean unregisterShuffle(int shuffleId) {
    ShuffleImplementation used = used();
    if (used != null) {
      used.unregisterShuffle(shuffleId);
    }
    return super.unregisterShuffle(shuffleId);
  }

  @Override
  public void stop() {
    ShuffleImplementation used = used();
    if (used != null) {
      used.stop();
    }
    super.stop();
  }

  private synchronized ShuffleImplementation used() {
    return implementation;
  }
}
