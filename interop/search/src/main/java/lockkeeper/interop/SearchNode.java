package lockkeeper.interop;

import org.codelibs.opensearch.runner.OpenSearchRunner;

/**
 * One OpenSearch node on loopback; the arguments are its directory, its HTTP port and its transport port. It runs until it is
 * killed. It is embedded because the distribution's own script refuses to run as root, which build machines do.
 */
public final class SearchNode {
    public static void main(String[] arguments) throws Exception {
        OpenSearchRunner runner = new OpenSearchRunner();
        runner.onBuild((number, settings) -> {
            settings.put("network.host", "127.0.0.1");
            settings.put("http.port", arguments[1]);
            settings.put("transport.port", arguments[2]);
            settings.put("discovery.type", "single-node");
            // A test's disk may be nearly full of builds; the engine would make the index read-only.
            settings.put("cluster.routing.allocation.disk.threshold_enabled", false);
        });
        runner.build(OpenSearchRunner.newConfigs().basePath(arguments[0]).numOfNode(1).clusterName("lockkeeper"));
        Thread.currentThread().join();
    }

    private SearchNode() {}
}
