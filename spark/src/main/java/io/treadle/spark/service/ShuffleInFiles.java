package io.treadle.spark.service;

import com.fasterxml.jackson.annotation.JsonCreator;
import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.annotation.JsonProperty;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.util.kvstore.KVIndex;

/** A shuffle is in files of executors: an event of Spark's log, and what the history server keeps of it. */
@JsonIgnoreProperties(ignoreUnknown = true)
public final class ShuffleInFiles implements SparkListenerEvent {
  /** Spark's number of it. */
  @KVIndex
  @JsonProperty("shuffle")
  private final int shuffle;

  @JsonProperty("reason")
  private final String reason;

  @JsonCreator
  ShuffleInFiles(@JsonProperty("shuffle") int shuffle, @JsonProperty("reason") String reason) {
    this.shuffle = shuffle;
    this.reason = reason;
  }

  int shuffle() {
    return shuffle;
  }

  /** For people: which one, and why. */
  String text() {
    return "Shuffle " + shuffle + ": " + reason;
  }
}
