package io.treadle.spark.service;

import io.treadle.spark.Reliability;
import io.treadle.spark.ShuffleImplementation;
import io.treadle.spark.TreadleDataIO;
import io.treadle.spark.TreadleShuffleHandle;
import java.io.IOException;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkContext$;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.shuffle.ShuffleReader;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.shuffle.ShuffleWriter;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;

/** Shuffles at the service. It is loaded by its name: {@link ShuffleImplementation#CLASS}. */
public final class ServiceShuffles implements ShuffleImplementation {
  private static final Logger LOG = LoggerFactory.getLogger(ServiceShuffles.class);

  /** The most maps of a shuffle, and the most partitions. */
  private static final int MOST = 1 << 20;

  /** How long the end of an application waits for the records of its shuffles. */
  private static final long COUNT_MILLIS = 1_000;

  private final SparkConf conf;
  private final Settings settings;

  /** In the driver: the numbers in the service. In executors: those that were used here. */
  private final ConcurrentHashMap<Integer, Long> numbers = new ConcurrentHashMap<>();

  private final ServicePage page;
  private boolean isShown;

  /** null: the application writes no events, or has no shuffle yet. */
  private EventLog events;

  private Driver driver;
  private Connection connection;
  private DriverLink link;

  /** Why no shuffle is at the service; null: nothing is in the way. */
  private String refusal;

  public ServiceShuffles(SparkConf conf, boolean isDriver) {
    this.conf = conf;
    settings = new Settings(conf);
    page = new ServicePage(conf);
  }

  @Override
  public void load() {
    Native.load();
  }

  @Override
  public void begin() {
    settings.check();
    refusal = refused();
    if (refusal == null) {
      configure();
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
    String failed = Attempts.refusal(conf);
    if (failed != null) {
      return failed;
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

  private void configure() {
    set("spark.shuffle.sort.io.plugin.class", TreadleDataIO.class.getName(), "rows outlive executors");
    set("spark.dynamicAllocation.shuffleTracking.enabled", "false", "idle executors may go");
    set("spark.sql.adaptive.localShuffleReader.enabled", "false", "rows of a map are not side by side");
    set("spark.shuffle.push.enabled", "false", "rows are merged at the servers");
  }

  private void set(String key, String value, String why) {
    String before = conf.get(key, value);
    if (before.equals(value)) {
      LOG.info("Treadle sets {}={}: {}", key, value, why);
    } else {
      LOG.warn("Treadle sets {}={}, and {} has no effect: {}", key, value, before, why);
    }
    conf.set(key, value);
  }

  @Override
  public byte[] registerShuffle(int shuffleId, ShuffleDependency<?, ?, ?> dependency) {
    int maps = dependency.rdd().getNumPartitions();
    if (maps == 0) {
      // There is nothing to write.
      return null;
    }
    showPage();
    String why;
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
        "Shuffle {} is in files of executors, as without Treadle, and losing an executor loses its rows{}: {}",
        shuffleId,
        settings.isDynamic() ? ", also if it goes because it idles" : "",
        why);
    Reliability.lost();
    ShuffleInFiles event = new ShuffleInFiles(shuffleId, why);
    page.fellBack(event);
    EventLog events = events();
    if (events != null) {
      events.fellBack(event);
    }
    return null;
  }

  /** Spark has its UI and its log of events when it has shuffles. What goes wrong with a page fails no job. */
  private synchronized void showPage() {
    if (isShown) {
      return;
    }
    isShown = true;
    Option<SparkContext> context = SparkContext$.MODULE$.getActive();
    if (context.isEmpty()) {
      return;
    }
    try {
      events = EventLog.of(context.get());
      if (context.get().ui().isDefined()) {
        ServiceTab.attach(context.get().ui().get(), page::html);
      }
    } catch (RuntimeException | LinkageError error) {
      LOG.warn("Spark's UI has no tab of Treadle: {}", error.toString());
    }
  }

  private synchronized EventLog events() {
    return events;
  }

  private byte[] register(
      int shuffleId, ShuffleDependency<?, ?, ?> dependency, int maps, int partitions)
      throws IOException {
    Driver driver = driver();
    boolean hasRecords =
        dependency.serializer().supportsRelocationOfSerializedObjects() && !settings.encrypts();
    String name = Labels.name(name(), shuffleId, dependency);
    String codec = hasRecords ? settings.codec() : null;
    long number = driver.register(shuffleId, name, maps, partitions, codec);
    numbers.put(shuffleId, number);
    return ServiceShuffle.about(driver.master(), driver.application(), number, maps, hasRecords);
  }

  @Override
  public byte[] renew(TreadleShuffleHandle<?, ?, ?> handle) {
    Driver known;
    synchronized (this) {
      known = driver;
    }
    int shuffleId = handle.shuffleId();
    if (known == null || known.has(shuffleId)) {
      return handle.about();
    }
    LOG.info("Shuffle {} has ended, and is used again", shuffleId);
    ShuffleDependency<?, ?, ?> dependency = handle.dependency();
    int maps = dependency.rdd().getNumPartitions();
    try {
      return register(shuffleId, dependency, maps, dependency.partitioner().numPartitions());
    } catch (IOException | RuntimeException error) {
      LOG.warn("Shuffle {} has ended, and cannot be used again: {}", shuffleId, error.toString());
      return handle.about();
    }
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
      Versions.preferNoHost();
    }
    if (driver.listen(SparkEnv.get().rpcEnv())) {
      Labels.begin(conf, driver);
      Attempts attempts = Attempts.of(conf);
      Option<SparkContext> context = SparkContext$.MODULE$.getActive();
      if (attempts != null && context.isDefined()) {
        context.get().addSparkListener(attempts);
      }
      page.began(driver);
      countLostServers(driver);
      if (events != null) {
        events.began(driver);
      }
    }
    return driver;
  }

  private static void countLostServers(Driver driver) {
    try {
      Reliability.countLostServers(() -> driver.lostServers(COUNT_MILLIS));
    } catch (NoSuchMethodError older) {
      LOG.debug("The jar that has loaded this version does not report lost servers", older);
    }
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
  public <K, V, C> ShuffleWriter<K, V> getWriter(
      TreadleShuffleHandle<K, V, C> handle,
      long mapId,
      TaskContext context,
      ShuffleWriteMetricsReporter metrics) {
    ServiceShuffle<K, V, C> shuffle = new ServiceShuffle<>(handle);
    numbers.put(shuffle.shuffleId(), shuffle.number);
    Connection connection = connection();
    long most = settings.timeoutMillis();
    try {
      return shuffle.hasRecords
          ? new RecordWriter<>(shuffle, mapId, context, connection, link, most, metrics)
          : new StreamWriter<>(shuffle, mapId, context, connection, link, most, metrics);
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
  }

  @Override
  public <K, V, C> ShuffleReader<K, C> getReader(
      TreadleShuffleHandle<K, V, C> handle,
      int firstMap,
      int endMap,
      int firstPartition,
      int endPartition,
      TaskContext context,
      ShuffleReadMetricsReporter metrics) {
    ServiceShuffle<K, V, C> shuffle = new ServiceShuffle<>(handle);
    numbers.put(shuffle.shuffleId(), shuffle.number);
    Connection connection = connection();
    PartitionReader reader =
        new PartitionReader(
            shuffle, firstMap, endMap, context, connection, link, settings.timeoutMillis(), metrics);
    return new ServiceReader<>(shuffle, firstPartition, endPartition, context, reader, metrics);
  }

  @Override
  public void unregisterShuffle(int shuffleId) {
    Long number = numbers.remove(shuffleId);
    synchronized (this) {
      if (number != null && connection != null) {
        connection.unregister(number);
      }
    }
    if (number != null && driver != null) {
      driver.unregister(shuffleId);
    }
  }

  @Override
  public synchronized void stop() {
    if (connection != null) {
      connection.close();
    }
    if (driver != null) {
      driver.close();
    }
  }
}
