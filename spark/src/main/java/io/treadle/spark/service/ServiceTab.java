package io.treadle.spark.service;

import java.util.function.Supplier;
import org.apache.spark.ui.SparkUI;
import org.apache.spark.ui.SparkUITab;
import org.apache.spark.ui.WebUIPage;
import scala.collection.Seq;
import scala.runtime.AbstractFunction0;
import scala.xml.Node;
import scala.xml.Unparsed;

/** The tab "Treadle" of Spark's UI. */
final class ServiceTab extends SparkUITab {
  private static final String TITLE = "Shuffles at the service";

  /** Has the UI show it. {@code body}: HTML, whose texts are escaped. */
  static void attach(SparkUI ui, Supplier<String> body) {
    ServiceTab tab = new ServiceTab(ui);
    tab.attachPage(new Page(tab, body));
    ui.attachTab(tab);
  }

  private ServiceTab(SparkUI ui) {
    super(ui, "treadle");
  }

  /** Spark calls the method of its own version: the classes of the other one need not be there. */
  private static final class Page extends WebUIPage {
    private final ServiceTab tab;
    private final Supplier<String> body;

    Page(ServiceTab tab, Supplier<String> body) {
      super("");
      this.tab = tab;
      this.body = body;
    }

    /** Up to 3.5. */
    @Override
    public Seq<Node> render(javax.servlet.http.HttpServletRequest request) {
      return page(request);
    }

    /** From 4.0 on. */
    public scala.collection.immutable.Seq<Node> render(
        jakarta.servlet.http.HttpServletRequest request) {
      return page(request);
    }

    private scala.collection.immutable.Seq<Node> page(Object request) {
      return Versions.page(
          request,
          TITLE,
          new AbstractFunction0<Object>() {
            @Override
            public Object apply() {
              return new Unparsed(body.get());
            }
          },
          tab);
    }
  }
}
