package io.treadle.spark;

import java.util.Map;
import org.apache.spark.SparkConf;
import org.apache.spark.shuffle.api.ShuffleDataIO;
import org.apache.spark.shuffle.api.ShuffleDriverComponents;
import org.apache.spark.shuffle.api.ShuffleExecutorComponents;
import org.apache.spark.shuffle.sort.io.LocalDiskShuffleDataIO;

/** Tells Spark that rows outlive executors. What is not at the service is in files, as it is without Treadle. */
public final class TreadleDataIO implements ShuffleDataIO {
  private final LocalDiskShuffleDataIO files;

  public TreadleDataIO(SparkConf conf) {
    files = new LocalDiskShuffleDataIO(conf);
  }

  @Override
  public ShuffleExecutorComponents executor() {
    return files.executor();
  }

  @Override
  public ShuffleDriverComponents driver() {
    ShuffleDriverComponents inner = files.driver();
    return new ShuffleDriverComponents() {
      @Override
      public Map<String, String> initializeApplication() {
        return inner.initializeApplication();
      }

      @Override
      public void cleanupApplication() {
        inner.cleanupApplication();
      }

      @Override
      public void registerShuffle(int shuffleId) {
        inner.registerShuffle(shuffleId);
      }

      @Override
      public void removeShuffle(int shuffleId, boolean blocking) {
        inner.removeShuffle(shuffleId, blocking);
      }

      /** Asked each time. */
      @Override
      public boolean supportsReliableStorage() {
        return Reliability.holds();
      }
    };
  }
}
