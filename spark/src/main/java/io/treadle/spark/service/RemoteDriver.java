package io.treadle.spark.service;

import java.io.IOException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.spark.SparkConf;
import org.apache.spark.rpc.RpcEndpointRef;
import org.apache.spark.rpc.RpcTimeout;
import org.apache.spark.util.RpcUtils;
import org.apache.spark.rpc.RpcEnv;
import scala.concurrent.Await;
import scala.concurrent.Future;
import scala.concurrent.duration.Duration;
import scala.concurrent.duration.FiniteDuration;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/** The driver over Spark's RPC. */
final class RemoteDriver implements DriverLink {
  /** How often it is looked whether the task was interrupted. */
  private static final Duration LOOK = Duration.create(25, TimeUnit.MILLISECONDS);

  private static final ClassTag<byte[]> BYTES = ClassTag$.MODULE$.apply(byte[].class);

  private final RpcEndpointRef driver;
  private final RpcTimeout timeout;

  RemoteDriver(SparkConf conf, RpcEnv rpcEnv, long timeoutMillis) {
    driver = RpcUtils.makeDriverRef(Driver.NAME, conf, rpcEnv);
    FiniteDuration most = new FiniteDuration(timeoutMillis, TimeUnit.MILLISECONDS);
    timeout = new RpcTimeout(most, Settings.TIMEOUT);
  }

  @Override
  public byte[] ask(byte[] message, Interrupt interrupt) throws IOException {
    Future<byte[]> answer = driver.ask(message, timeout, BYTES);
    try {
      while (!answer.isCompleted()) {
        if (interrupt.interrupted()) {
          throw new ServiceException.Interrupted("asking the driver: it was interrupted");
        }
        try {
          Await.ready(answer, LOOK);
        } catch (TimeoutException later) {
          continue;
        }
      }
      return Await.result(answer, LOOK);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new ServiceException.Interrupted("asking the driver: it was interrupted");
    } catch (IOException | RuntimeException error) {
      throw error;
    } catch (Exception error) {
      throw new IOException("asking the driver: " + error.getMessage(), error);
    }
  }
}
