package io.treadle.spark.service;

import java.io.InputStream;
import org.apache.spark.unsafe.Platform;

/**
 * The records of pieces in native memory, as one stream. It ends when the memory is freed: a thread that feeds Python may
 * still read when its task has ended.
 */
final class PieceInput extends InputStream {
  /** Before each record: the bytes of what follows the first four, and those of the record. */
  private static final int HEAD = 8;

  /** Address, bytes and map of each piece. */
  private final long[] pieces;

  private int piece;
  private final int endPiece;

  /** The rest of the record, and of the piece. */
  private long at;

  private long recordEnd;
  private long pieceEnd;

  /** Those of the pieces from {@code first} up to {@code end}, in numbers of longs. */
  PieceInput(long[] pieces, int first, int end) {
    this.pieces = pieces;
    piece = first;
    endPiece = end;
  }

  @Override
  public synchronized int read() {
    if (!more()) {
      return -1;
    }
    return Platform.getByte(null, at++) & 0xff;
  }

  @Override
  public synchronized int read(byte[] into, int start, int length) {
    int read = 0;
    while (read < length && more()) {
      int some = (int) Math.min(length - read, recordEnd - at);
      Platform.copyMemory(null, at, into, Platform.BYTE_ARRAY_OFFSET + start + read, some);
      at += some;
      read += some;
    }
    return read == 0 && length > 0 ? -1 : read;
  }

  @Override
  public synchronized int available() {
    return (int) Math.min(Integer.MAX_VALUE, recordEnd - at);
  }

  /** Its memory is not valid any more. */
  synchronized void end() {
    piece = endPiece;
    at = recordEnd = pieceEnd = 0;
  }

  /** Whether there is a byte at {@code at}. */
  private boolean more() {
    while (at == recordEnd) {
      if (at == pieceEnd) {
        if (piece >= endPiece) {
          return false;
        }
        at = recordEnd = pieces[piece];
        pieceEnd = at + pieces[piece + 1];
        piece += 3;
      } else {
        // The native side has looked at all of them: they have these lengths.
        long length = Integer.toUnsignedLong(Platform.getInt(null, at + 4));
        at += HEAD;
        recordEnd = at + length;
      }
    }
    return true;
  }
}
