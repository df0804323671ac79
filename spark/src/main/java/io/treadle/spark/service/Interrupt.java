package io.treadle.spark.service;

import org.apache.spark.TaskContext;

/** What may end a native wait. It is asked about every 25 ms, on the thread that waits. */
interface Interrupt {
  Interrupt NEVER = () -> false;

  boolean interrupted();

  /** That of the thread alone. */
  static Interrupt ofThread() {
    return () -> Thread.currentThread().isInterrupted();
  }

  /** That of a task. Spark may mark a task without interrupting its thread, and native code sees neither by itself. */
  static Interrupt of(TaskContext context) {
    return () -> context.isInterrupted() || Thread.currentThread().isInterrupted();
  }
}
