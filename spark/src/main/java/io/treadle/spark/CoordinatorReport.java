package io.treadle.spark;

import io.treadle.spark.service.Failures;
import java.io.IOException;
import java.io.OutputStream;
import java.net.HttpURLConnection;
import java.net.InetAddress;
import java.net.URI;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Locale;
import org.apache.spark.SparkConf;
import org.apache.spark.executor.TaskMetrics;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.scheduler.SparkListenerApplicationStart;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Tells the coordinator how an application ended, which had a decision of it. Nothing here fails an application: it is
 * told after the last job, within two seconds, and what goes wrong is a line of the log.
 */
public final class CoordinatorReport extends SparkListener {
  static final String COORDINATOR = "spark.treadle.coordinator";
  static final String TOKEN_FILE = "spark.treadle.coordinator.tokenFile";
  static final String DECISION = "spark.treadle.decision";

  private static final Logger LOG = LoggerFactory.getLogger(CoordinatorReport.class);
  private static final String LISTENERS = "spark.extraListeners";
  private static final int MILLIS = 2000;
  private static final int LONGEST_ERROR = 2000;

  private final SparkConf conf;
  private long began = System.currentTimeMillis();
  private long shuffled;
  private long input;
  private long rows;
  private long blockedMillis;
  private long retries;
  private int stages;
  private final Failures failures = new Failures();

  public CoordinatorReport(SparkConf conf) {
    this.conf = conf;
  }

  /** Has Spark make one, if there are a coordinator and a decision. In the driver, before Spark starts its listeners. */
  static void enable(SparkConf conf) {
    if (!conf.contains(COORDINATOR) || !conf.contains(DECISION)) {
      return;
    }
    String others = conf.get(LISTENERS, "");
    String own = CoordinatorReport.class.getName();
    if (!others.contains(own)) {
      conf.set(LISTENERS, others.isEmpty() ? own : others + "," + own);
    }
  }

  @Override
  public void onApplicationStart(SparkListenerApplicationStart event) {
    began = event.time();
  }

  @Override
  public void onTaskEnd(SparkListenerTaskEnd event) {
    TaskMetrics metrics = event.taskMetrics();
    if (event.taskInfo().failed()) {
      retries++;
    } else if (metrics != null && event.taskInfo().successful()) {
      shuffled += metrics.shuffleWriteMetrics().bytesWritten();
      input += metrics.inputMetrics().bytesRead();
      rows += metrics.inputMetrics().recordsRead();
      blockedMillis += metrics.shuffleReadMetrics().fetchWaitTime();
    }
  }

  @Override
  public void onStageCompleted(SparkListenerStageCompleted event) {
    if (event.stageInfo().failureReason().isEmpty()) {
      stages++;
    }
  }

  @Override
  public void onJobStart(SparkListenerJobStart event) {
    failures.began(event);
  }

  @Override
  public void onJobEnd(SparkListenerJobEnd event) {
    failures.ended(event);
  }

  @Override
  public void onOtherEvent(SparkListenerEvent event) {
    failures.other(event);
  }

  @Override
  public void onApplicationEnd(SparkListenerApplicationEnd event) {
    // Looking up a name has no timeout of its own. The master of the shuffles runs until all listeners were told.
    Thread thread = new Thread(() -> send(body(event.time())), "treadle-report");
    thread.setDaemon(true);
    thread.start();
    try {
      thread.join(MILLIS);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
    if (thread.isAlive()) {
      LOG.warn("The coordinator did not take the end of this application within {} ms", MILLIS);
    }
  }

  private String body(long ended) {
    boolean hasFailed = failures.hasFailed();
    String cause = hasFailed ? (failures.isOfService() ? "service" : "job") : "";
    String error = failures.error();
    String text = error.substring(0, Math.min(error.length(), LONGEST_ERROR));
    return String.format(
        Locale.ROOT,
        "{\"failed\": %b, \"cause\": \"%s\", \"error\": \"%s\", \"duration\": %.3f, \"at\": %.3f, "
            + "\"shuffle_bytes\": %d, \"input_bytes\": %d, \"input_rows\": %d, \"stages\": %d, "
            + "\"blocked\": %.3f, \"retries\": %d, \"fallbacks\": %d, \"lost_servers\": %d}",
        hasFailed,
        cause,
        escaped(text),
        Math.max(0, ended - began) / 1e3,
        ended / 1e3,
        shuffled,
        input,
        rows,
        stages,
        blockedMillis / 1e3,
        retries,
        Reliability.fallbacks(),
        Reliability.lostServers());
  }

  /** As a text of JSON, in ASCII: halves of characters and signs of control are escaped, too. */
  private static String escaped(String text) {
    StringBuilder found = new StringBuilder();
    for (char one : text.toCharArray()) {
      boolean isPlain = one >= ' ' && one < 127 && one != '"' && one != '\\';
      found.append(isPlain ? String.valueOf(one) : String.format(Locale.ROOT, "\\u%04x", (int) one));
    }
    return found.toString();
  }

  private void send(String body) {
    try {
      String base = conf.get(COORDINATOR).replaceAll("/+$", "");
      String id = URLEncoder.encode(conf.get(DECISION), "UTF-8").replace("+", "%20");
      URI uri = URI.create(base + "/api/jobs/" + id + "/end");
      HttpURLConnection call = (HttpURLConnection) uri.toURL().openConnection();
      call.setConnectTimeout(MILLIS);
      call.setReadTimeout(MILLIS);
      call.setInstanceFollowRedirects(false);
      call.setRequestMethod("POST");
      call.setDoOutput(true);
      call.setRequestProperty("Content-Type", "application/json");
      String file = conf.get(TOKEN_FILE, null);
      if (file != null) {
        call.setRequestProperty("Authorization", "Bearer " + token(file, uri));
      }
      byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
      call.setFixedLengthStreamingMode(bytes.length);
      try (OutputStream out = call.getOutputStream()) {
        out.write(bytes);
      }
      int status = call.getResponseCode();
      call.disconnect();
      if (status != 200) {
        LOG.warn("The coordinator did not take the end of this application: HTTP {}", status);
      }
    } catch (IOException | RuntimeException failure) {
      LOG.warn("The coordinator did not take the end of this application: {}", failure.toString());
    }
  }

  private static String token(String file, URI uri) throws IOException {
    boolean isHere = InetAddress.getByName(uri.getHost()).isLoopbackAddress();
    if (!"https".equals(uri.getScheme()) && !isHere) {
      throw new IOException("a token is sent by https:// alone, or within this machine");
    }
    String word = new String(Files.readAllBytes(Paths.get(file)), StandardCharsets.UTF_8).trim();
    // What else is in the file may be another secret: it is neither sent nor shown.
    if (!word.matches("[\\x21-\\x7e]+")) {
      throw new IOException(TOKEN_FILE + " must have one token, and nothing else");
    }
    return word;
  }
}
