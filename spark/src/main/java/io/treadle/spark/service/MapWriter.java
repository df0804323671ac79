package io.treadle.spark.service;

import java.io.IOException;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.TaskContext;
import org.apache.spark.scheduler.MapStatus;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.shuffle.ShuffleWriter;
import org.apache.spark.storage.BlockManagerId;
import org.apache.spark.util.TaskCompletionListener;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;
import scala.Product2;
import scala.collection.Iterator;

/** Writes the rows of a map: {@link #collect} puts them into an arena, which is pushed then. */
abstract class MapWriter<K, V, C> extends ShuffleWriter<K, V> {
  private static final Logger LOG = LoggerFactory.getLogger(MapWriter.class);

  /** No executor: Spark drops outputs at executors, workers and hosts that it loses. */
  private static final BlockManagerId LOCATION =
      BlockManagerId.apply("treadle", "treadle.invalid", 1, Option.empty());

  final ServiceShuffle<K, V, C> handle;
  final ShuffleDependency<K, V, C> dependency;
  final TaskContext context;
  final RecordArena arena;
  private final long mapId;
  private final Connection connection;
  private final DriverLink driver;
  private final long timeoutMillis;
  private final ShuffleWriteMetricsReporter metrics;
  private final Object[] checksums;
  private final long[] sizes;
  private MapStatus status;

  MapWriter(
      ServiceShuffle<K, V, C> handle,
      long mapId,
      TaskContext context,
      Connection connection,
      DriverLink driver,
      long timeoutMillis,
      ShuffleWriteMetricsReporter metrics)
      throws IOException {
    this.handle = handle;
    this.dependency = handle.dependency();
    this.mapId = mapId;
    this.context = context;
    this.connection = connection;
    this.driver = driver;
    this.timeoutMillis = timeoutMillis;
    this.metrics = metrics;
    checksums = Versions.rowChecksums(dependency);
    sizes = new long[handle.partitions];
    arena = new RecordArena(context);
    // A task that is killed does not always stop its writer.
    context.addTaskCompletionListener((TaskCompletionListener) ended -> arena.free());
  }

  /** Puts all rows into the arena. */
  abstract void collect(Iterator<Product2<K, V>> rows) throws IOException;

  @Override
  public void write(Iterator<Product2<K, V>> rows) throws IOException {
    collect(checksums.length == 0 ? rows : new Checked<>(rows, dependency.partitioner(), checksums));
    long begin = System.nanoTime();
    byte[] receipt;
    try {
      receipt = push();
      driver.ask(message(receipt), Interrupt.of(context));
    } catch (ServiceException.Interrupted error) {
      context.killTaskIfInterrupted();
      throw error;
    } finally {
      arena.free();
    }
    metrics.incWriteTime(System.nanoTime() - begin);
    long bytes = 0;
    for (long size : sizes) {
      bytes += size;
    }
    metrics.incBytesWritten(bytes);
    status = Versions.mapStatus(LOCATION, sizes, mapId, Versions.aggregated(checksums));
  }

  private byte[] message(byte[] receipt) {
    return Messages.receipt(handle.shuffleId(), context.partitionId(), mapId, receipt);
  }

  void wrote(long rows) {
    metrics.incRecordsWritten(rows);
  }

  private byte[] push() throws IOException {
    boolean mayHaveRun = context.stageAttemptNumber() > 0 || context.attemptNumber() > 0;
    try {
      return push(mayHaveRun, false);
    } catch (ServiceException.LateAttempt late) {
      byte[] message = Messages.replaces(handle.shuffleId(), context.partitionId());
      if (Messages.number(driver.ask(message, Interrupt.of(context))) == 0) {
        throw late;
      }
      return push(mayHaveRun, true);
    } catch (ServiceException.Gone gone) {
      LOG.warn("Connecting to the shuffle service again: {}", gone.getMessage());
      return push(true, false);
    }
  }

  private byte[] push(boolean mayHaveRun, boolean replaces) throws IOException {
    Interrupt interrupt = Interrupt.of(context);
    return arena.push(
        () -> connection.shuffle(handle, interrupt),
        context.partitionId(),
        mayHaveRun,
        replaces,
        sizes,
        timeoutMillis,
        interrupt);
  }

  @Override
  public Option<MapStatus> stop(boolean success) {
    arena.free();
    return success ? Option.apply(status) : Option.empty();
  }

  @Override
  public long[] getPartitionLengths() {
    return sizes;
  }
}
