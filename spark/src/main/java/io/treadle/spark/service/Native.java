package io.treadle.spark.service;

/**
 * The client of the shuffle service in Rust ({@code crates/shuffle/jvm}).
 *
 * <p>Numbers of services, shuffles, arenas and rows are handles. One that was closed is a {@link ServiceException.Gone} for
 * services and shuffles, and an {@link IllegalStateException} for the others. Calls that wait do so for {@code millis} at most, and end early when {@code interrupt} says so. They fail with a {@link
 * ServiceException}.
 */
final class Native {
  static {
    NativeLibrary.load();
  }

  private Native() {}

  /**
   * Has the library loaded.
   *
   * @throws UnsatisfiedLinkError if there is none for this machine
   */
  static void load() {}

  /**
   * Connects to a service. {@code application}: 0 for an application of its own. {@code settings}: the secret's file, the
   * authority, the certificate, its key, where an own master listens, and the part of the servers where its shuffles are to
   * be; null: the default.
   */
  static native long connect(
      String address,
      boolean ownMaster,
      String name,
      long application,
      String[] settings,
      boolean insecure,
      long millis,
      Interrupt interrupt)
      throws ServiceException;

  /** Where the master of the application is. */
  static native String master(long service) throws ServiceException;

  static native long application(long service) throws ServiceException;

  /** How many servers the master knows. */
  static native int servers(long service, long millis, Interrupt interrupt) throws ServiceException;

  /** Records of the application's shuffles, the latest last: a list of JSON, as {@code treadle shuffle list --json} has them. */
  static native String records(long service, long millis, Interrupt interrupt)
      throws ServiceException;

  /** Says in the record of a shuffle, by its number in the service, which stages write it. */
  static native void writtenBy(long service, long shuffle, String stages) throws ServiceException;

  /** Whether the connection has ended. */
  static native boolean over(long service) throws ServiceException;

  static native void close(long service);

  /**
   * Registers a shuffle. {@code expected}: bytes that it may push; 0: nobody knows. {@code codec}: what compresses its rows;
   * null: nothing.
   */
  static native long register(
      long service,
      String name,
      int maps,
      int partitions,
      int copies,
      long expected,
      String codec,
      long millis,
      Interrupt interrupt)
      throws ServiceException;

  /** The shuffle that another process has registered, by its number in the service. */
  static native long attach(long service, long number, long millis, Interrupt interrupt)
      throws ServiceException;

  /** The number of a shuffle in the service. */
  static native long number(long shuffle) throws ServiceException;

  /** At how many servers each row is. */
  static native int copies(long shuffle) throws ServiceException;

  /** Lets a shuffle go that others use. */
  static native void detach(long shuffle);

  /** Ends a shuffle: the servers drop its rows. */
  static native void finish(long shuffle, long millis, Interrupt interrupt) throws ServiceException;

  /** Memory for the rows of a map: partitions (4 bytes a row), ends of rows (8 bytes, after a first 0), and the rows. */
  static native long arena();

  /** Gives a region at least so many bytes. Returns its address, which may be another one than before. */
  static native long grow(long arena, int region, long capacity);

  /** Writes what is in the regions to files in one of the directories, and frees their memory. Returns the bytes. */
  static native long spill(long arena, long[] lengths, String[] directories);

  static native void free(long arena);

  /**
   * Pushes the rows of a map, and waits until all copies have them. {@code sizes} gets the bytes of each partition as they
   * are stored.
   *
   * @param again whether it may have run before: what servers have is not pushed
   * @param replaces whether its rows count even if others were committed
   * @return the receipt
   */
  static native byte[] push(
      long shuffle,
      int map,
      boolean again,
      boolean replaces,
      long arena,
      long[] lengths,
      long[] sizes,
      long millis,
      Interrupt interrupt)
      throws ServiceException;

  /** Commits the receipts, one for each map. Returns the generation, which readers need. */
  static native int commit(long shuffle, byte[][] receipts, long millis, Interrupt interrupt)
      throws ServiceException;

  /** The maps that must run again, since all copies of some of their rows are lost. */
  static native long[] lost(long shuffle, long millis, Interrupt interrupt) throws ServiceException;

  /**
   * The generation in which all maps began anew, since one had returned other rows: what was read of an earlier one does not
   * fit a later one. 0: none.
   */
  static native int restarted(long shuffle, long millis, Interrupt interrupt)
      throws ServiceException;

  /** Reads the rows of some maps, from the first one up to the end, for a partition. */
  static native long read(
      long shuffle,
      int generation,
      int partition,
      int first,
      int end,
      long millis,
      Interrupt interrupt)
      throws ServiceException;

  /** Address, bytes and map of each piece, in the order of the maps. Before each row are eight bytes. */
  static native long[] pieces(long rows);

  /** The bytes that rows took on their way, compressed or not. */
  static native long stored(long rows);

  /** Frees rows that were read. Their addresses are not valid any more. */
  static native void release(long rows);
}
