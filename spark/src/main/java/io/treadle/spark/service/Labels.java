package io.treadle.spark.service;

import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkContext$;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.scheduler.StageInfo;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;

/** By what people find a shuffle: its name in the service's records, Spark's page "Environment", and the driver's log. */
final class Labels extends SparkListener {
  /** Where the records of this application's shuffles are. It is shown, and nobody sets it. */
  static final String MASTER = "spark.treadle.master";

  private static final Logger LOG = LoggerFactory.getLogger(Labels.class);

  /** Of a name, in code points: a description may be the text of a query, and a name has at most 1,024 bytes. */
  private static final int LONGEST = 200;

  private final Driver driver;

  private Labels(Driver driver) {
    this.driver = driver;
  }

  /** The name of a shuffle: the application's, Spark's number of it, the SQL execution, and what the job is called. */
  static String name(String application, int shuffleId, ShuffleDependency<?, ?, ?> dependency) {
    StringBuilder name = new StringBuilder(application).append('/').append(shuffleId);
    Option<SparkContext> context = SparkContext$.MODULE$.getActive();
    String description = null;
    if (context.isDefined()) {
      String execution = context.get().getLocalProperty("spark.sql.execution.id");
      if (execution != null) {
        name.append(" SQL ").append(execution);
      }
      description = context.get().getLocalProperty("spark.job.description");
    }
    if (description == null) {
      description = dependency.rdd().creationSite().shortForm();
    }
    return line(name.append(' ').append(description).toString());
  }

  /** In one line, and no longer than the service takes. */
  private static String line(String text) {
    String line = text.replaceAll("\\s+", " ").trim();
    return line.codePointCount(0, line.length()) <= LONGEST
        ? line
        : line.substring(0, line.offsetByCodePoints(0, LONGEST)) + "…";
  }

  /** Says where the master is, and from now on which stage writes which shuffle, of those that are at the service. */
  static void begin(SparkConf conf, Driver driver) {
    conf.set(MASTER, driver.master());
    Option<SparkContext> context = SparkContext$.MODULE$.getActive();
    if (context.isDefined()) {
      Versions.showEnvironment(context.get());
      context.get().addSparkListener(new Labels(driver));
    }
  }

  @Override
  public void onStageSubmitted(SparkListenerStageSubmitted submitted) {
    StageInfo stage = submitted.stageInfo();
    Option<Object> shuffle = stage.shuffleDepId();
    if (shuffle.isDefined() && driver.writes((Integer) shuffle.get(), name(stage))) {
      LOG.info(
          "Stage {} ({}), attempt {}, writes shuffle {} at the service",
          stage.stageId(),
          stage.name(),
          stage.attemptNumber(),
          shuffle.get());
    }
  }

  /** As Spark calls it: the first attempt by the stage alone. */
  private static String name(StageInfo stage) {
    int attempt = stage.attemptNumber();
    return attempt == 0 ? String.valueOf(stage.stageId()) : stage.stageId() + "." + attempt;
  }
}
