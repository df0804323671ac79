package io.treadle.spark.service;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import org.apache.spark.Partitioner;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.serializer.SerializationStream;
import org.apache.spark.serializer.SerializerManager;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
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
    if (dependency.serializer().supportsRelocationOfSerializedObjects() && !combines) {
      ExternalSorter<Integer, byte[], byte[]> sorter =
          Versions.sorter(
              context,
              Option.empty(),
              Option.apply(new Numbers(handle.partitions)),
              Option.empty(),
              SparkEnv.get().closureSerializer());
      sort(sorter, new Serialised<>(rows, dependency), this::writeSerialised);
    } else {
      ExternalSorter<K, V, C> sorter =
          Versions.sorter(
              context,
              combines ? dependency.aggregator() : Option.empty(),
              Option.apply(dependency.partitioner()),
              Option.empty(),
              dependency.serializer());
      sort(sorter, rows, this::writeObjects);
    }
  }

  /** Puts the rows of a partition into its stream. Returns how many there are. */
  private interface Writing<K, C> {
    long write(Iterator<Product2<K, C>> rows, OutputStream stream) throws IOException;
  }

  private <A, B, D> void sort(
      ExternalSorter<A, B, D> sorter, Iterator<Product2<A, B>> rows, Writing<A, D> writing)
      throws IOException {
    try {
      sorter.insertAll(rows);
      Iterator<Tuple2<Object, Iterator<Product2<A, D>>>> partitions = sorter.partitionedIterator();
      while (partitions.hasNext()) {
        Tuple2<Object, Iterator<Product2<A, D>>> partition = partitions.next();
        write((Integer) partition._1(), partition._2(), writing);
      }
      context.taskMetrics().incMemoryBytesSpilled(sorter.memoryBytesSpilled());
      context.taskMetrics().incDiskBytesSpilled(sorter.diskBytesSpilled());
      context.taskMetrics().incPeakExecutionMemory(sorter.peakMemoryUsedBytes());
    } finally {
      sorter.stop();
    }
  }

  private <A, D> void write(int partition, Iterator<Product2<A, D>> rows, Writing<A, D> writing)
      throws IOException {
    if (!rows.hasNext()) {
      return;
    }
    SerializerManager manager = SparkEnv.get().serializerManager();
    ShuffleBlockId block = new ShuffleBlockId(handle.shuffleId(), context.taskAttemptId(), partition);
    long count = writing.write(rows, manager.wrapStream(block, new Cut(partition)));
    if (arena.length() > 0) {
      arena.end(partition);
    }
    wrote(count);
  }

  private long writeObjects(Iterator<Product2<K, C>> rows, OutputStream stream) {
    SerializationStream out = dependency.serializer().newInstance().serializeStream(stream);
    long count = 0;
    while (rows.hasNext()) {
      Product2<K, C> row = rows.next();
      out.writeKey(row._1(), OBJECT);
      out.writeValue(row._2(), OBJECT);
      count++;
    }
    out.close();
    return count;
  }

  private long writeSerialised(Iterator<Product2<Integer, byte[]>> rows, OutputStream stream)
      throws IOException {
    long count = 0;
    while (rows.hasNext()) {
      stream.write(rows.next()._2());
      count++;
    }
    stream.close();
    return count;
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
      cut();
    }

    @Override
    public void write(byte[] from, int start, int length) throws IOException {
      for (int done = 0; done < length; ) {
        int some = (int) Math.min(length - done, LONGEST - arena.length());
        inner.write(from, start + done, some);
        done += some;
        cut();
      }
    }

    private void cut() throws IOException {
      if (arena.length() >= LONGEST) {
        arena.end(partition);
      }
    }
  }

  /**
   * Rows as bytes, with the numbers of their partitions. Each is serialised before the next one is taken: SQL and Hadoop use
   * the memory of a row again, and the sorter keeps rows.
   */
  private static final class Serialised<K, V> extends AbstractIterator<Product2<Integer, byte[]>> {
    private final Iterator<Product2<K, V>> rows;
    private final Partitioner partitioner;
    private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    private final SerializationStream out;

    Serialised(Iterator<Product2<K, V>> rows, ShuffleDependency<K, V, ?> dependency) {
      this.rows = rows;
      partitioner = dependency.partitioner();
      out = dependency.serializer().newInstance().serializeStream(bytes);
    }

    @Override
    public boolean hasNext() {
      if (rows.hasNext()) {
        return true;
      }
      out.close();
      if (bytes.size() > 0) {
        throw new IllegalStateException(
            "the serialiser writes at its end: its rows cannot be read in any order");
      }
      return false;
    }

    @Override
    public Product2<Integer, byte[]> next() {
      Product2<K, V> row = rows.next();
      out.writeKey(row._1(), OBJECT);
      out.writeValue(row._2(), OBJECT);
      out.flush();
      Tuple2<Integer, byte[]> found =
          new Tuple2<>(partitioner.getPartition(row._1()), bytes.toByteArray());
      bytes.reset();
      return found;
    }
  }

  /** Partitions by their numbers. */
  private static final class Numbers extends Partitioner {
    private static final long serialVersionUID = 1L;
    private final int count;

    Numbers(int count) {
      this.count = count;
    }

    @Override
    public int numPartitions() {
      return count;
    }

    @Override
    public int getPartition(Object key) {
      return (Integer) key;
    }
  }
}
