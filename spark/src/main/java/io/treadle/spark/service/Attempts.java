package io.treadle.spark.service;

import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkConf;
import org.apache.spark.deploy.SparkHadoopUtil;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Attempts of an application whose driver YARN runs, or {@code treadle spark-submit}. One that fails because of the service
 * leaves a file for the next one, which shuffles without it.
 *
 * <p>YARN starts attempts with the same settings, and the driver's constructor is before Spark knows which attempt it is. The
 * environment says that, and where Spark keeps the application's files until its last attempt has ended. {@code treadle
 * spark-submit} says both in variables of its own.
 */
final class Attempts extends SparkListener {
  private static final Logger LOG = LoggerFactory.getLogger(Attempts.class);
  private static final Pattern CONTAINER =
      Pattern.compile("container_(?:e\\d+_)?\\d+_\\d+_(\\d+)_\\d+");
  private static final String FILE = "treadle-service-failed";
  private static final String ATTEMPT = "TREADLE_SPARK_ATTEMPT";
  private static final String ITS_FILE = "TREADLE_SPARK_FAILURE";
  private static final int LONGEST = 1000;
  private static final long SECONDS = 10;

  private final SparkConf conf;
  private final Path file;

  private final Failures failures = new Failures();

  /** The last failure is the service's, and no job has succeeded since. */
  private boolean isMarked;

  private Attempts(SparkConf conf, Path file) {
    this.conf = conf;
    this.file = file;
  }

  /** What notes why this attempt fails; null: nobody starts another one. */
  static Attempts of(SparkConf conf) {
    Path file = file();
    return file == null ? null : new Attempts(conf, file);
  }

  /** Why this attempt is to shuffle without the service; null: it is not. */
  static String refusal(SparkConf conf) {
    int attempt = number();
    Path file = file();
    if (attempt < 2 || file == null) {
      return null;
    }
    try {
      String why = within(() -> read(conf, file));
      return why == null
          ? null
          : "this is attempt " + attempt + " of the application, and the service was why an earlier one failed: " + why;
    } catch (IOException error) {
      LOG.warn("Whether an earlier attempt failed because of the service is not known: {}", error.toString());
      return null;
    }
  }

  /** From 1 on; 0: nobody counts them. */
  private static int number() {
    Matcher matcher = CONTAINER.matcher(variable("CONTAINER_ID"));
    if (matcher.matches()) {
      return Integer.parseInt(matcher.group(1));
    }
    String told = variable(ATTEMPT);
    return told.matches("[1-9]") ? Integer.parseInt(told) : 0;
  }

  private static Path file() {
    boolean isOfYarn = CONTAINER.matcher(variable("CONTAINER_ID")).matches();
    String place = variable(isOfYarn ? "SPARK_YARN_STAGING_DIR" : ITS_FILE);
    if (number() == 0 || place.isEmpty()) {
      return null;
    }
    return isOfYarn ? new Path(place, FILE) : new Path(new File(place).toURI());
  }

  private static String variable(String name) {
    String text = System.getenv(name);
    return text == null ? "" : text;
  }

  @Override
  public void onJobStart(SparkListenerJobStart event) {
    failures.began(event);
  }

  @Override
  public void onJobEnd(SparkListenerJobEnd event) {
    failures.ended(event);
    mark();
  }

  @Override
  public void onOtherEvent(SparkListenerEvent event) {
    failures.other(event);
    mark();
  }

  private void mark() {
    try {
      if (failures.isOfService() && !isMarked) {
        String line = line(failures.error());
        within(() -> write(conf, file, line));
        isMarked = true;
      } else if (isMarked && !failures.isOfService()) {
        // The application goes on, or fails for another reason.
        within(() -> delete(conf, file));
        isMarked = false;
      }
    } catch (IOException error) {
      LOG.warn("The next attempt may use the service again: {} cannot be changed: {}", file, error.toString());
    }
  }

  private static String line(String text) {
    String line = text.replaceAll("\\s+", " ").trim();
    return line.substring(0, Math.min(line.length(), LONGEST));
  }

  private static FileSystem files(SparkConf conf, Path file) throws IOException {
    return file.getFileSystem(SparkHadoopUtil.get().newConfiguration(conf));
  }

  private static String read(SparkConf conf, Path file) throws IOException {
    try (InputStream in = files(conf, file).open(file)) {
      byte[] bytes = new byte[4 * LONGEST];
      int length = 0;
      for (int more = 0; more >= 0 && length < bytes.length; length += Math.max(0, more)) {
        more = in.read(bytes, length, bytes.length - length);
      }
      return line(new String(bytes, 0, length, StandardCharsets.UTF_8));
    } catch (FileNotFoundException none) {
      return null;
    }
  }

  private static String write(SparkConf conf, Path file, String line) throws IOException {
    try (OutputStream out = files(conf, file).create(file, true)) {
      out.write(line.getBytes(StandardCharsets.UTF_8));
    }
    return line;
  }

  private static String delete(SparkConf conf, Path file) throws IOException {
    files(conf, file).delete(file, false);
    return null;
  }

  /** Does something on another thread: file systems wait as long as they like. */
  private static String within(Callable<String> act) throws IOException {
    FutureTask<String> task = new FutureTask<>(act);
    Futures.daemons("treadle-attempts").newThread(task).start();
    try {
      return task.get(SECONDS, TimeUnit.SECONDS);
    } catch (TimeoutException late) {
      task.cancel(true);
      throw new IOException("no answer within " + SECONDS + " s", late);
    } catch (InterruptedException error) {
      task.cancel(true);
      Thread.currentThread().interrupt();
      throw new IOException("interrupted", error);
    } catch (ExecutionException error) {
      Throwable cause = Futures.cause(error);
      throw cause instanceof IOException ? (IOException) cause : new IOException(cause);
    }
  }
}
