package io.treadle.spark.service;

import java.io.IOException;
import org.apache.spark.Partitioner;
import org.apache.spark.TaskContext;
import org.apache.spark.serializer.SerializationStream;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import scala.Product2;
import scala.collection.Iterator;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/**
 * Writes each row as a record, for serialisers whose rows can be read in any order. Each is serialised before the next one
 * is taken: SQL uses the memory of a row again.
 */
final class RecordWriter<K, V, C> extends MapWriter<K, V, C> {
  private static final ClassTag<Object> OBJECT = ClassTag$.MODULE$.Object();

  RecordWriter(
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
  @SuppressWarnings("unchecked")
  void collect(Iterator<Product2<K, V>> rows) throws IOException {
    Iterator<? extends Product2<K, ?>> written = rows;
    if (dependency.mapSideCombine()) {
      written =
          (Iterator<? extends Product2<K, ?>>)
              (Object) dependency.aggregator().get().combineValuesByKey(rows, context);
    }
    Partitioner partitioner = dependency.partitioner();
    SerializationStream out =
        dependency.serializer().newInstance().serializeStream(arena.output());
    long count = 0;
    while (written.hasNext()) {
      Product2<K, ?> row = written.next();
      Object key = row._1();
      out.writeKey(key, OBJECT);
      out.writeValue(row._2(), OBJECT);
      out.flush();
      arena.end(partitioner.getPartition(key));
      count++;
    }
    out.close();
    if (arena.length() > 0) {
      throw new IOException("the serialiser writes at its end: its rows cannot be read in any order");
    }
    wrote(count);
  }
}
