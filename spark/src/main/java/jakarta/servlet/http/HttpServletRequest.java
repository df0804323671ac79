package jakarta.servlet.http;

/** The name alone, by which a page of Spark 4 is asked. It is not in the jar: Spark has the real one. */
public interface HttpServletRequest {}
