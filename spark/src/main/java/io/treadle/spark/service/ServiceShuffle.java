package io.treadle.spark.service;

import io.treadle.spark.TreadleShuffleHandle;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import org.apache.spark.ShuffleDependency;

/** A shuffle of the service, as those who write and read it know it. */
final class ServiceShuffle<K, V, C> {
  private final TreadleShuffleHandle<K, V, C> handle;

  /** Where the master of the application is. */
  final String master;

  /** The number of the application in the service, and that of the shuffle. */
  final long application;

  final long number;
  final int maps;
  final int partitions;

  /** Whether each row is a record. Otherwise what a map has for a partition is a stream. */
  final boolean hasRecords;

  /** That of a handle with what {@link #about} has returned in the driver. */
  ServiceShuffle(TreadleShuffleHandle<K, V, C> handle) {
    this.handle = handle;
    DataInputStream in = new DataInputStream(new ByteArrayInputStream(handle.about()));
    try {
      master = in.readUTF();
      application = in.readLong();
      number = in.readLong();
      maps = in.readInt();
      hasRecords = in.readBoolean();
    } catch (IOException error) {
      throw new IllegalStateException("what the driver says of shuffle " + shuffleId(), error);
    }
    partitions = dependency().partitioner().numPartitions();
  }

  int shuffleId() {
    return handle.shuffleId();
  }

  ShuffleDependency<K, V, C> dependency() {
    return handle.dependency();
  }

  static byte[] about(
      String master, long application, long number, int maps, boolean hasRecords) {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (DataOutputStream out = new DataOutputStream(bytes)) {
      out.writeUTF(master);
      out.writeLong(application);
      out.writeLong(number);
      out.writeInt(maps);
      out.writeBoolean(hasRecords);
    } catch (IOException never) {
      throw new IllegalStateException(never);
    }
    return bytes.toByteArray();
  }
}
