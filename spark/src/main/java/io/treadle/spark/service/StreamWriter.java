package io.treadle.spark.service;

import java.io.IOException;
import java.io.OutputStream;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.serializer.SerializationStream;
import org.apache.spark.serializer.SerializerManager;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.storage.ShuffleBlockId;
import org.apache.spark.util.collection.ExternalSorter;
import scala.Option;
import scala.Product2;
import scala.Tuple2;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/**
 * Writes what a map has for a partition as a stream, for serialisers whose rows depend on those before, and for encryption.
 * Spark's sorter sorts the rows, and spills them. Spark compresses and encrypts the streams.
 */
final class StreamWriter<K, V, C> extends MapWriter<K, V, C> {
  private static final ClassTag<Object> OBJECT = ClassTag$.MODULE$.Object();

  /** The longest record. A stream may have several. */
  private static final long LONGEST = 1 << 30;

  StreamWriter(
      ServiceShuffle<K, V, C> handle,
      long mapId,
      TaskContext context,
      Connection connection,
      DriverLink driver,
      long timeoutMillis,
      ShuffleWriteMetricsReporter metrics)
      throws IOException {
    super(handle, mapId, context, connection, driver, timeoutMillis, metrics);
  }

  @Override
  void collect(Iterator<Product2<K, V>> rows) throws IOException {
    boolean combines = dependency.mapSideCombine();
    ExternalSorter<K, V, C> sorter =
        Versions.sorter(
            context,
            combines ? dependency.aggregator() : Option.empty(),
            Option.apply(dependency.partitioner()),
            Option.empty(),
            dependency.serializer());
    try {
      sorter.insertAll(new Kept<>(rows));
      Iterator<Tuple2<Object, Iterator<Product2<K, C>>>> partitions = sorter.partitionedIterator();
      while (partitions.hasNext()) {
        Tuple2<Object, Iterator<Product2<K, C>>> partition = partitions.next();
        write((Integer) partition._1(), partition._2());
      }
      context.taskMetrics().incMemoryBytesSpilled(sorter.memoryBytesSpilled());
      context.taskMetrics().incDiskBytesSpilled(sorter.diskBytesSpilled());
      context.taskMetrics().incPeakExecutionMemory(sorter.peakMemoryUsedBytes());
    } finally {
      sorter.stop();
    }
  }

  private void write(int partition, Iterator<Product2<K, C>> rows) throws IOException {
    if (!rows.hasNext()) {
      return;
    }
    SerializerManager manager = SparkEnv.get().serializerManager();
    ShuffleBlockId block = new ShuffleBlockId(handle.shuffleId(), context.taskAttemptId(), partition);
    OutputStream stream = manager.wrapStream(block, new Cut(partition));
    SerializationStream out = dependency.serializer().newInstance().serializeStream(stream);
    long count = 0;
    while (rows.hasNext()) {
      Product2<K, C> row = rows.next();
      out.writeKey(row._1(), OBJECT);
      out.writeValue(row._2(), OBJECT);
      count++;
    }
    out.close();
    if (arena.length() > 0) {
      arena.end(partition);
    }
    wrote(count);
  }

  /** Cuts a long stream into records. */
  private final class Cut extends OutputStream {
    private final int partition;
    private final OutputStream inner = arena.output();

    Cut(int partition) {
      this.partition = partition;
    }

    @Override
    public void write(int value) throws IOException {
      inner.write(value);
    }

    @Override
    public void write(byte[] from, int start, int length) throws IOException {
      inner.write(from, start, length);
      if (arena.length() >= LONGEST) {
        arena.end(partition);
      }
    }
  }

  /** Rows that stay as they are: SQL uses the memory of a row again, and the sorter keeps rows. */
  private static final class Kept<K, V> extends AbstractIterator<Product2<K, V>> {
    private final Iterator<Product2<K, V>> rows;

    Kept(Iterator<Product2<K, V>> rows) {
      this.rows = rows;
    }

    @Override
    public boolean hasNext() {
      return rows.hasNext();
    }

    @Override
    @SuppressWarnings("unchecked")
    public Product2<K, V> next() {
      Product2<K, V> row = rows.next();
      Object value = row._2();
      if (value instanceof UnsafeRow) {
        return (Product2<K, V>) new Tuple2<>(row._1(), ((UnsafeRow) value).copy());
      }
      return row;
    }
  }
}
