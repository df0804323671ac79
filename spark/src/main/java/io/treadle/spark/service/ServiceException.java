package io.treadle.spark.service;

import java.io.IOException;

/** An error of the shuffle service. Its text names the shuffle, the map or the partition, and says what to do. */
public class ServiceException extends IOException {
  private static final long serialVersionUID = 1L;

  public ServiceException(String text) {
    super(text);
  }

  /** Whether a job's failure names an error of the service. Stack traces of other errors have other classes of ours. */
  public static boolean isIn(String failure) {
    return failure.replace(Interrupted.class.getName(), "").contains(ServiceException.class.getName())
        || failure.contains("org.apache.spark.shuffle.FetchFailedException")
        || failure.contains("org.apache.spark.shuffle.MetadataFetchFailedException");
  }

  /** All copies of some rows are lost: {@link Native#lost} names the maps that must run again. */
  public static final class RowsLost extends ServiceException {
    private static final long serialVersionUID = 1L;

    public RowsLost(String text) {
      super(text);
    }
  }

  /** The shuffle was committed again since, or never in this generation. */
  public static final class Superseded extends ServiceException {
    private static final long serialVersionUID = 1L;

    public Superseded(String text) {
      super(text);
    }
  }

  /** Other rows of this map were committed. Those stay. */
  public static final class LateAttempt extends ServiceException {
    private static final long serialVersionUID = 1L;

    public LateAttempt(String text) {
      super(text);
    }
  }

  /** {@link Interrupt} has ended the wait. */
  public static final class Interrupted extends ServiceException {
    private static final long serialVersionUID = 1L;

    public Interrupted(String text) {
      super(text);
    }
  }

  /** The time has passed. The same call may succeed later. */
  public static final class TimedOut extends ServiceException {
    private static final long serialVersionUID = 1L;

    public TimedOut(String text) {
      super(text);
    }
  }

  /** There is no connection, or it has ended. */
  public static final class Gone extends ServiceException {
    private static final long serialVersionUID = 1L;

    public Gone(String text) {
      super(text);
    }
  }
}
