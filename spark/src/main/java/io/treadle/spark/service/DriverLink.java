package io.treadle.spark.service;

import java.io.IOException;

/** Asks the driver. */
interface DriverLink {
  byte[] ask(byte[] message, Interrupt interrupt) throws IOException;
}
