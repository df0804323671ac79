package io.treadle.spark.service;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.TaskContext;
import org.apache.spark.util.TaskCompletionListener;

/** In which generation an attempt of a task has read each shuffle last, as long as it runs. */
final class TaskReads {
  private static final ConcurrentHashMap<Long, TaskReads> RUNNING = new ConcurrentHashMap<>();

  /** By numbers of shuffles in the service. */
  private final Map<Long, Integer> generations = new HashMap<>();

  private TaskReads() {}

  /** That of a task. All readers of the task have the same. */
  static TaskReads of(TaskContext context) {
    long attempt = context.taskAttemptId();
    TaskReads own = new TaskReads();
    TaskReads known = RUNNING.putIfAbsent(attempt, own);
    if (known != null) {
      return known;
    }
    context.addTaskCompletionListener((TaskCompletionListener) ended -> RUNNING.remove(attempt));
    return own;
  }

  /** {@link Messages#NONE}: it has read nothing. */
  synchronized int generation(long shuffle) {
    return generations.getOrDefault(shuffle, Messages.NONE);
  }

  synchronized void read(long shuffle, int generation) {
    generations.put(shuffle, generation);
  }
}
