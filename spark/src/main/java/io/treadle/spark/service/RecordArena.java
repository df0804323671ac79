package io.treadle.spark.service;

import java.io.File;
import java.io.IOException;
import java.io.OutputStream;
import java.util.Arrays;
import java.util.Collections;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.memory.MemoryConsumer;
import org.apache.spark.unsafe.Platform;

/**
 * The rows of a map in native memory, which is charged to the task. There is no native call for a row.
 *
 * <p>When Spark has no more memory for the task, the rows go to a file without a name. They are pushed together at the end:
 * the service compares the rows of a map as a whole, so the order in which Spark computes them does not count.
 */
final class RecordArena extends MemoryConsumer {
  private static final int PLACES = 0;
  private static final int ENDS = 1;
  private static final int DATA = 2;
  private static final int REGIONS = 3;

  /** Bytes of the first memory of a region, and the most by which one grows at a time. */
  private static final long[] FIRST = {4 << 10, 8 << 10, 64 << 10};

  private static final long STEP = 64 << 20;

  /** It is not worth a file if there are fewer bytes. */
  private static final long LEAST_SPILL = 1 << 20;

  private final TaskContext context;
  private final long handle = Native.arena();
  private final long[] addresses = new long[REGIONS];
  private final long[] capacities = new long[REGIONS];
  private final long[] used = new long[REGIONS];
  private final Output output = new Output();

  /** Bytes of all rows, and where the row that is being written began. */
  private long bytes;

  private long begun;
  private long peak;
  private boolean isFree;

  RecordArena(TaskContext context) throws IOException {
    super(
        context.taskMemoryManager(),
        context.taskMemoryManager().pageSizeBytes(),
        context.taskMemoryManager().getTungstenMemoryMode());
    this.context = context;
    addEnd();
  }

  /** Where a row is written. */
  OutputStream output() {
    return output;
  }

  /** Bytes of the row that is being written. */
  long length() {
    return bytes - begun;
  }

  /** What was written since the last call is a row for a partition. */
  void end(int partition) throws IOException {
    long place = room(PLACES, 4);
    Platform.putInt(null, place, partition);
    used[PLACES] += 4;
    addEnd();
  }

  private void addEnd() throws IOException {
    long place = room(ENDS, 8);
    Platform.putLong(null, place, bytes);
    used[ENDS] += 8;
    begun = bytes;
  }

  /**
   * Pushes all rows. See {@link Native#push}. {@code shuffle} is asked for when there is memory: Spark may take long to find
   * some, and a connection may end meanwhile.
   */
  byte[] push(
      Shuffle shuffle,
      int map,
      boolean again,
      boolean replaces,
      long[] sizes,
      long millis,
      Interrupt interrupt)
      throws IOException {
    // What is pushed is a copy that is sorted. It is made even if Spark has no memory for it.
    long copy = bytes == 0 ? 0 : acquireMemory(bytes);
    peak = Math.max(peak, getUsed());
    try {
      return Native.push(
          shuffle.handle(), map, again, replaces, handle, used, sizes, millis, interrupt);
    } finally {
      freeMemory(copy);
    }
  }

  /** Frees everything. A second time has no effect. */
  void free() {
    if (!isFree) {
      isFree = true;
      Native.free(handle);
      freeMemory(getUsed());
      context.taskMetrics().incPeakExecutionMemory(peak);
    }
  }

  /** Other consumers get nothing: this one spills when it needs more itself, as Spark's own writers do. */
  @Override
  public long spill(long size, MemoryConsumer trigger) {
    return 0;
  }

  /** Where the next bytes of a region go. */
  private long room(int region, long length) throws IOException {
    if (used[region] + length > capacities[region]) {
      grow(region, length);
    }
    return addresses[region] + used[region];
  }

  private void grow(int region, long length) throws IOException {
    long more = Math.max(FIRST[region], Math.min(capacities[region], STEP));
    long least = used[region] + length - capacities[region];
    more = Math.max(more, least);
    if (!charge(more) && used[DATA] > LEAST_SPILL) {
      spillAll();
      more = Math.max(FIRST[region], length);
      // If there is still no memory, so little is taken without it.
      charge(more);
    }
    long grown = capacities[region] + more;
    // What fails has lost its memory: nothing may be written to it.
    capacities[region] = 0;
    addresses[region] = Native.grow(handle, region, grown);
    capacities[region] = grown;
  }

  private boolean charge(long more) {
    long got = acquireMemory(more);
    peak = Math.max(peak, getUsed());
    if (got < more) {
      freeMemory(got);
    }
    return got >= more;
  }

  private void spillAll() {
    File[] places = SparkEnv.get().blockManager().diskBlockManager().localDirs();
    String[] directories = Arrays.stream(places).map(File::getPath).toArray(String[]::new);
    // Tasks begin with different ones.
    int first = (int) Math.floorMod(context.taskAttemptId(), (long) directories.length);
    Collections.rotate(Arrays.asList(directories), first);
    long spilled = Native.spill(handle, used, directories);
    for (int region = 0; region < REGIONS; region++) {
      addresses[region] = capacities[region] = used[region] = 0;
    }
    freeMemory(getUsed());
    context.taskMetrics().incMemoryBytesSpilled(spilled);
    context.taskMetrics().incDiskBytesSpilled(spilled);
  }

  /** The native shuffle. */
  interface Shuffle {
    long handle() throws IOException;
  }

  private final class Output extends OutputStream {
    @Override
    public void write(int value) throws IOException {
      Platform.putByte(null, room(DATA, 1), (byte) value);
      used[DATA]++;
      bytes++;
    }

    @Override
    public void write(byte[] from, int start, int length) throws IOException {
      long place = room(DATA, length);
      Platform.copyMemory(from, Platform.BYTE_ARRAY_OFFSET + start, null, place, length);
      used[DATA] += length;
      bytes += length;
    }
  }
}
