package io.treadle.spark.service;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;

/**
 * What executors ask the driver, as bytes: Spark's RPC deserialises objects with a class loader that may not have these
 * classes.
 */
final class Messages {
  static final byte RECEIPT = 1;
  static final byte GENERATION = 2;
  static final byte REPLACES = 3;

  /** Generations begin with 1. */
  static final int NONE = 0;

  private Messages() {}

  /** What a run of a map has written. The answer is empty: the driver has it. */
  static byte[] receipt(int shuffleId, int map, long mapId, byte[] receipt) {
    return bytes(
        out -> {
          out.writeByte(RECEIPT);
          out.writeInt(shuffleId);
          out.writeInt(map);
          out.writeLong(mapId);
          out.writeInt(receipt.length);
          out.write(receipt);
        });
  }

  /**
   * Asks which generation is to be read. {@code failed}: one whose rows were not there; {@code superseded}: since it was
   * committed again. The answer is a number: that generation, or {@link #NONE} if maps must run first.
   */
  static byte[] generation(int shuffleId, int failed, boolean superseded) {
    return bytes(
        out -> {
          out.writeByte(GENERATION);
          out.writeInt(shuffleId);
          out.writeInt(failed);
          out.writeBoolean(superseded);
        });
  }

  /** Asks whether Spark runs a map again although other rows of it were committed. The answer is a number: 1 if so. */
  static byte[] replaces(int shuffleId, int map) {
    return bytes(
        out -> {
          out.writeByte(REPLACES);
          out.writeInt(shuffleId);
          out.writeInt(map);
        });
  }

  static byte[] number(int value) {
    return bytes(out -> out.writeInt(value));
  }

  static int number(byte[] answer) throws IOException {
    return in(answer).readInt();
  }

  static DataInputStream in(byte[] message) {
    return new DataInputStream(new ByteArrayInputStream(message));
  }

  private interface Writing {
    void write(DataOutputStream out) throws IOException;
  }

  private static byte[] bytes(Writing writing) {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try {
      writing.write(new DataOutputStream(bytes));
    } catch (IOException never) {
      throw new IllegalStateException(never);
    }
    return bytes.toByteArray();
  }
}
