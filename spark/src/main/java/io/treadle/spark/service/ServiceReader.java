package io.treadle.spark.service;

import java.io.IOException;
import java.io.InputStream;
import org.apache.spark.Aggregator;
import org.apache.spark.InterruptibleIterator;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskKilledException;
import org.apache.spark.serializer.SerializerInstance;
import org.apache.spark.shuffle.FetchFailedException;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.shuffle.ShuffleReader;
import org.apache.spark.storage.ShuffleBlockId;
import org.apache.spark.util.TaskCompletionListener;
import org.apache.spark.util.collection.ExternalSorter;
import scala.Option;
import scala.Product2;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;

/** Reads a range of partitions: deserialises, combines and sorts, as Spark's own reader does. */
final class ServiceReader<K, C> implements ShuffleReader<K, C> {
  private final ServiceShuffle<K, ?, C> handle;
  private final int firstPartition;
  private final int endPartition;
  private final TaskContext context;
  private final PartitionReader reader;
  private final ShuffleReadMetricsReporter metrics;

  ServiceReader(
      ServiceShuffle<K, ?, C> handle,
      int firstPartition,
      int endPartition,
      TaskContext context,
      PartitionReader reader,
      ShuffleReadMetricsReporter metrics) {
    this.handle = handle;
    this.firstPartition = firstPartition;
    this.endPartition = endPartition;
    this.context = context;
    this.reader = reader;
    this.metrics = metrics;
  }

  @Override
  @SuppressWarnings({"unchecked", "rawtypes"})
  public Iterator<Product2<K, C>> read() {
    ShuffleDependency dependency = handle.dependency();
    Streams streams = new Streams(dependency.serializer().newInstance());
    context.addTaskCompletionListener((TaskCompletionListener) ended -> streams.close());
    Iterator rows = new InterruptibleIterator(context, streams);
    Option<Aggregator> aggregator = dependency.aggregator();
    if (aggregator.isDefined()) {
      rows =
          dependency.mapSideCombine()
              ? aggregator.get().combineCombinersByKey(rows, context)
              : aggregator.get().combineValuesByKey(rows, context);
    }
    if (dependency.keyOrdering().isDefined()) {
      ExternalSorter sorter =
          Versions.sorter(
              context,
              Option.empty(),
              Option.empty(),
              dependency.keyOrdering(),
              dependency.serializer());
      rows = sorter.insertAllAndUpdateMetrics(rows);
    }
    return rows instanceof InterruptibleIterator ? rows : new InterruptibleIterator(context, rows);
  }

  /** The rows of all streams of all partitions, one after another. One partition is in memory at a time. */
  private final class Streams extends AbstractIterator<Object> {
    private final SerializerInstance serializer;
    private int partition = firstPartition;

    /** The rows of the partition that is read, and its pieces; 0: none. */
    private long rows;

    private long[] pieces = {};

    /** The next stream begins at this long of {@code pieces}. */
    private int next;

    private PieceInput input;
    private Iterator<?> stream;

    /** The task has ended. Another thread may still read for it. */
    private boolean isClosed;

    Streams(SerializerInstance serializer) {
      this.serializer = serializer;
    }

    @Override
    public boolean hasNext() {
      while (stream == null || !stream.hasNext()) {
        if (next < pieces.length) {
          open();
        } else if (partition < endPartition) {
          stream = null;
          release();
          fetch();
        } else {
          stream = null;
          release();
          context.taskMetrics().mergeShuffleReadMetrics();
          return false;
        }
      }
      return true;
    }

    @Override
    public Object next() {
      if (!hasNext()) {
        throw new java.util.NoSuchElementException();
      }
      metrics.incRecordsRead(1);
      return stream.next();
    }

    private void fetch() {
      long read;
      try {
        read = reader.read(partition++);
      } catch (IOException | FetchFailedException error) {
        throw ServiceReader.<RuntimeException>unchecked(error);
      }
      synchronized (this) {
        if (isClosed) {
          Native.release(read);
          throw new TaskKilledException("the task has ended");
        }
        rows = read;
        pieces = Native.pieces(rows);
      }
      metrics.incRemoteBytesRead(Native.stored(read));
      metrics.incRemoteBlocksFetched(pieces.length / 3);
    }

    private void open() {
      InputStream bytes;
      synchronized (this) {
        int end = pieces.length;
        if (!handle.hasRecords) {
          // What one map has for a partition is a stream of its own.
          end = next;
          while (end < pieces.length && pieces[end + 2] == pieces[next + 2]) {
            end += 3;
          }
        }
        input = new PieceInput(pieces, next, end);
        bytes = input;
        next = end;
      }
      if (!handle.hasRecords) {
        ShuffleBlockId block = new ShuffleBlockId(handle.shuffleId(), 0, partition - 1);
        bytes = SparkEnv.get().serializerManager().wrapStream(block, bytes);
      }
      stream = serializer.deserializeStream(bytes).asKeyValueIterator();
    }

    private synchronized void close() {
      isClosed = true;
      release();
    }

    /** Frees what was read. A row that was returned is a copy. */
    private synchronized void release() {
      next = 0;
      pieces = new long[0];
      if (input != null) {
        input.end();
        input = null;
      }
      if (rows != 0) {
        Native.release(rows);
        rows = 0;
      }
    }
  }

  /** Throws what iterators of Scala may throw, which declare nothing. */
  @SuppressWarnings("unchecked")
  private static <E extends Throwable> RuntimeException unchecked(Throwable error) throws E {
    throw (E) error;
  }
}
