package io.treadle.spark.service;

import java.io.IOException;
import java.util.concurrent.locks.LockSupport;
import org.apache.spark.TaskContext;
import org.apache.spark.shuffle.FetchFailedException;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Reads partitions of a shuffle for a task: each one whole, or an error that Spark knows. */
final class PartitionReader {
  private static final Logger LOG = LoggerFactory.getLogger(PartitionReader.class);

  /** The first pause before reading again, and the longest. */
  private static final long FIRST_PAUSE_MILLIS = 25;

  private static final long LONGEST_PAUSE_MILLIS = 1_000;

  private final ServiceShuffle<?, ?, ?> handle;
  private final int firstMap;
  private final int endMap;
  private final TaskContext context;
  private final TaskReads reads;
  private final Interrupt interrupt;
  private final Connection connection;
  private final DriverLink driver;
  private final long timeoutMillis;
  private final ShuffleReadMetricsReporter metrics;

  PartitionReader(
      ServiceShuffle<?, ?, ?> handle,
      int firstMap,
      int endMap,
      TaskContext context,
      Connection connection,
      DriverLink driver,
      long timeoutMillis,
      ShuffleReadMetricsReporter metrics) {
    this.handle = handle;
    this.firstMap = firstMap;
    this.endMap = Math.min(endMap, handle.maps);
    this.context = context;
    this.reads = TaskReads.of(context);
    this.interrupt = Interrupt.of(context);
    this.connection = connection;
    this.driver = driver;
    this.timeoutMillis = timeoutMillis;
    this.metrics = metrics;
  }

  /** The rows of a partition, for {@link Native#pieces}. */
  long read(int partition) throws IOException, FetchFailedException {
    long begin = System.nanoTime();
    try {
      return tried(partition, begin + timeoutMillis * 1_000_000);
    } catch (ServiceException.Interrupted error) {
      context.killTaskIfInterrupted();
      throw error;
    } finally {
      metrics.incFetchWaitTime((System.nanoTime() - begin) / 1_000_000);
    }
  }

  private long tried(int partition, long deadline) throws IOException, FetchFailedException {
    int generation = connection.generation(handle);
    if (generation == Messages.NONE) {
      generation = ask(partition, Messages.NONE, false, null);
    }
    for (long pause = FIRST_PAUSE_MILLIS; ; pause = Math.min(2 * pause, LONGEST_PAUSE_MILLIS)) {
      ServiceException failed;
      boolean superseded = false;
      try {
        long shuffle = connection.shuffle(handle, interrupt);
        long left = Math.max(0, (deadline - System.nanoTime()) / 1_000_000);
        checkFits(shuffle, generation, partition, left);
        long rows =
            Native.read(shuffle, generation, partition, firstMap, endMap, left, interrupt);
        reads.read(handle.number, generation);
        return rows;
      } catch (ServiceException.RowsLost error) {
        failed = error;
      } catch (ServiceException.Superseded error) {
        failed = error;
        superseded = true;
      } catch (ServiceException.Gone error) {
        failed = error;
      } catch (ServiceException error) {
        if (error.getClass() == ServiceException.class) {
          // It may have ended: Spark has removed it, and runs its maps again.
          ask(partition, Messages.NONE, false, error);
        }
        throw error;
      }
      if (System.nanoTime() > deadline) {
        throw failed;
      }
      LOG.info("Reading again: {}", failed.getMessage());
      generation = ask(partition, generation, superseded, failed);
      pause(pause);
    }
  }

  /**
   * A task has rows of before or of after all maps ran again with other rows, and not of both. Otherwise it fails as a fetch
   * does, which needs no map: Spark runs the whole task again.
   */
  private void checkFits(long shuffle, int generation, int partition, long millis)
      throws IOException, FetchFailedException {
    int before = reads.generation(handle.number);
    if (before == Messages.NONE || before == generation) {
      return;
    }
    int restarted = Native.restarted(shuffle, millis, interrupt);
    if (restarted > Math.min(before, generation)) {
      String text =
          "the task has read rows of generation " + before + ", and all maps ran again with other rows";
      throw new FetchFailedException(null, handle.shuffleId(), -1L, -1, partition, text, null);
    }
  }

  private void pause(long millis) throws ServiceException {
    long end = System.nanoTime() + millis * 1_000_000;
    while (System.nanoTime() < end) {
      if (interrupt.interrupted()) {
        throw new ServiceException.Interrupted("reading again: it was interrupted");
      }
      LockSupport.parkNanos(Math.min(millis, FIRST_PAUSE_MILLIS) * 1_000_000);
    }
  }

  /** The generation to read. It fails as a fetch does if maps must run first: Spark runs those that have no output. */
  private int ask(int partition, int failed, boolean superseded, Throwable cause)
      throws IOException, FetchFailedException {
    byte[] message = Messages.generation(handle.shuffleId(), failed, superseded);
    int generation = Messages.number(driver.ask(message, interrupt));
    connection.generation(handle, generation);
    if (generation == Messages.NONE) {
      String text = cause == null ? "maps have no output" : cause.getMessage();
      // With an address, or the index of a map, Spark would run others, or none.
      throw new FetchFailedException(null, handle.shuffleId(), -1L, -1, partition, text, cause);
    }
    return generation;
  }
}
