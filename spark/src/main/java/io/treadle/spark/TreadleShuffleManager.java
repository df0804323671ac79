package io.treadle.spark;

import java.io.IOException;
import java.util.concurrent.ConcurrentHashMap;
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
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Spark's shuffles on Treadle's shuffle service: {@code spark.shuffle.manager}.
 *
 * <p>It is a {@link SortShuffleManager}, since Spark copies each row for others, and since a shuffle that cannot be at the
 * service is written as without Treadle.
 */
public class TreadleShuffleManager extends SortShuffleManager {
  private static final Logger LOG = LoggerFactory.getLogger(TreadleShuffleManager.class);

  /** The most maps of a shuffle, and the most partitions. */
  private static final int MOST = 1 << 20;

  private final SparkConf conf;
  private final Settings settings;
  private final boolean isDriver;

  /** In the driver: the numbers in the service. In executors: those that were used here. */
  private final ConcurrentHashMap<Integer, Long> numbers = new ConcurrentHashMap<>();

  private Driver driver;
  private Connection connection;
  private DriverLink link;

  /** Why no shuffle is at the service; null: nothing is in the way. */
  private String refusal;

  public TreadleShuffleManager(SparkConf conf, boolean isDriver) {
    super(conf);
    this.conf = conf;
    this.isDriver = isDriver;
    settings = new Settings(conf);
    if (isDriver) {
      settings.check();
      CoordinatorReport.enable(conf);
      Reliability.begin();
      refusal = refused();
      if (refusal == null) {
        configure();
      }
    }
  }

  /** Why no shuffle can be at the service, as far as it is known now; null: nothing is in the way. */
  private String refused() {
    if (settings.servers() == null) {
      return Settings.SERVERS + " is not set: it is the address of treadle shuffle-master";
    }
    if (settings.hasOldFetchProtocol()) {
      return "spark.shuffle.useOldFetchProtocol names no runs of maps";
    }
    try {
      Native.load();
      if (settings.isDynamic()) {
        // With what is set then, files of idle executors would be lost.
        driver = Driver.connect(settings, name());
      }
    } catch (IOException | LinkageError error) {
      return error.getMessage();
    }
    return null;
  }

  private String name() {
    return conf.get("spark.app.name", "spark");
  }

  /** Sets what follows from the service, before Spark reads it. */
  private void configure() {
    set("spark.shuffle.sort.io.plugin.class", TreadleDataIO.class.getName(), "rows outlive executors");
    set("spark.dynamicAllocation.shuffleTracking.enabled", "false", "idle executors may go");
    set("spark.sql.adaptive.localShuffleReader.enabled", "false", "rows of a map are not side by side");
    set("spark.shuffle.push.enabled", "false", "rows are merged at the servers");
  }

  private void set(String key, String value, String why) {
    LOG.info("Treadle sets {}={}: {}", key, value, why);
    conf.set(key, value);
  }

  @Override
  public <K, V, C> ShuffleHandle registerShuffle(
      int shuffleId, ShuffleDependency<K, V, C> dependency) {
    int maps = dependency.rdd().getNumPartitions();
    if (maps == 0) {
      // There is nothing to write.
      return super.registerShuffle(shuffleId, dependency);
    }
    String why = null;
    int partitions = dependency.partitioner().numPartitions();
    if (maps > MOST || partitions > MOST) {
      why = maps + " maps and " + partitions + " partitions: there can be " + MOST + " of each";
    } else {
      try {
        return register(shuffleId, dependency, maps, partitions);
      } catch (IOException | LinkageError error) {
        why = error.getMessage();
      }
    }
    LOG.warn(
        "Shuffle {} is in files of executors, as without Treadle, and losing an executor loses its rows: {}",
        shuffleId,
        why);
    Reliability.lost();
    CoordinatorReport.fellBack();
    return super.registerShuffle(shuffleId, dependency);
  }

  private <K, V, C> ShuffleHandle register(
      int shuffleId, ShuffleDependency<K, V, C> dependency, int maps, int partitions)
      throws IOException {
    Driver driver = driver();
    boolean hasRecords =
        dependency.serializer().supportsRelocationOfSerializedObjects() && !settings.encrypts();
    String name = Labels.name(name(), shuffleId, dependency);
    String codec = hasRecords ? settings.codec() : null;
    long number = driver.register(shuffleId, name, maps, partitions, codec);
    numbers.put(shuffleId, number);
    return new TreadleShuffleHandle<>(
        shuffleId, dependency, driver.master(), driver.application(), number, maps, hasRecords);
  }

  /** The driver's part, which starts with the first shuffle, or before. If it cannot, no later shuffle waits for it again. */
  private synchronized Driver driver() throws IOException {
    if (refusal != null) {
      throw new IOException(refusal);
    }
    if (driver == null) {
      try {
        driver = Driver.connect(settings, name());
      } catch (IOException | LinkageError error) {
        refusal = error.getMessage();
        throw error;
      }
    }
    if (driver.listen(SparkEnv.get().rpcEnv())) {
      Labels.begin(conf, driver.master(), numbers::containsKey);
    }
    return driver;
  }

  private synchronized Connection connection() {
    if (connection == null) {
      SparkEnv env = SparkEnv.get();
      connection = new Connection(settings, name() + "-" + env.executorId(), driver);
      if (driver != null) {
        Driver own = driver;
        link =
            (message, interrupt) ->
                Futures.await(own.answer(message), interrupt, "asking the driver");
      } else {
        link = new RemoteDriver(conf, env.rpcEnv(), settings.timeoutMillis());
      }
    }
    return connection;
  }

  @Override
  @SuppressWarnings("unchecked")
  public <K, V> ShuffleWriter<K, V> getWriter(
      ShuffleHandle handle, long mapId, TaskContext context, ShuffleWriteMetricsReporter metrics) {
    if (!(handle instanceof TreadleShuffleHandle)) {
      return super.getWriter(handle, mapId, context, metrics);
    }
    TreadleShuffleHandle<K, V, Object> own = (TreadleShuffleHandle<K, V, Object>) handle;
    numbers.put(own.shuffleId(), own.number);
    Connection connection = connection();
    long most = settings.timeoutMillis();
    try {
      return own.hasRecords
          ? new RecordWriter<>(own, mapId, context, connection, link, most, metrics)
          : new StreamWriter<>(own, mapId, context, connection, link, most, metrics);
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
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
    TreadleShuffleHandle<K, ?, C> own = (TreadleShuffleHandle<K, ?, C>) handle;
    numbers.put(own.shuffleId(), own.number);
    Connection connection = connection();
    PartitionReader reader =
        new PartitionReader(
            own, firstMap, endMap, context, connection, link, settings.timeoutMillis(), metrics);
    return new TreadleShuffleReader<>(own, firstPartition, endPartition, context, reader, metrics);
  }

  @Override
  public boolean unregisterShuffle(int shuffleId) {
    Long number = numbers.remove(shuffleId);
    synchronized (this) {
      if (number != null && connection != null) {
        connection.unregister(number);
      }
    }
    if (number != null && driver != null) {
      driver.unregister(shuffleId);
    }
    return super.unregisterShuffle(shuffleId);
  }

  @Override
  public void stop() {
    synchronized (this) {
      if (connection != null) {
        connection.close();
      }
      if (driver != null) {
        driver.close();
      }
    }
    super.stop();
  }
}
