package io.treadle.spark.service;

import org.apache.spark.Partitioner;
import scala.Product2;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;

/** Rows that Spark's own checksums see. They decide whether a stage counts as deterministic. */
final class Checked<K, V> extends AbstractIterator<Product2<K, V>> {
  private final Iterator<Product2<K, V>> rows;
  private final Partitioner partitioner;
  private final Object[] checksums;

  Checked(Iterator<Product2<K, V>> rows, Partitioner partitioner, Object[] checksums) {
    this.rows = rows;
    this.partitioner = partitioner;
    this.checksums = checksums;
  }

  @Override
  public boolean hasNext() {
    return rows.hasNext();
  }

  @Override
  public Product2<K, V> next() {
    Product2<K, V> row = rows.next();
    Versions.update(checksums[partitioner.getPartition(row._1())], row._1(), row._2());
    return row;
  }
}
