package org.apache.spark;

/** Spark's own tests of shuffles with the settings that the JVM was given: they begin without any. */
public class TreadleShuffleSuite extends ShuffleSuite {
  @Override
  public void beforeAll() {
    super.beforeAll();
    System.getProperties().stringPropertyNames().stream()
        .filter(name -> name.startsWith("spark."))
        .forEach(name -> conf().set(name, System.getProperty(name)));
  }
}
