package org.apache.zookeeper.server;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import lockkeeper.interop.Served;

/**
 * Replaces the listening part of ZooKeeper's own server: a Lockkeeper server listens in its place. A server that the tests make
 * in this process exists only for its JMX beans and never has a client.
 */
public class NIOServerCnxnFactory extends ServerCnxnFactory {
    private InetSocketAddress address;
    private Served served;
    private int mostOfOne;

    @Override
    public void configure(InetSocketAddress address, int maxClients, int backlog, boolean secure) {
        this.address = address;
        mostOfOne = maxClients;
    }

    @Override
    public void startup(ZooKeeperServer server, boolean startServer) throws IOException, InterruptedException {
        setZooKeeperServer(server);
        server.startdata();
        server.startup();
        List<String> flags = new ArrayList<>();
        flags.addAll(List.of("--tick", server.getTickTime() + "ms"));
        flags.addAll(List.of("--min-session-timeout", server.getMinSessionTimeout() + "ms"));
        flags.addAll(List.of("--max-session-timeout", server.getMaxSessionTimeout() + "ms"));
        if (mostOfOne > 0) {
            flags.addAll(List.of("--max-connections-per-address", Integer.toString(mostOfOne)));
        }
        served = new Served(address, server.getTxnLogFactory().getSnapDir(), flags);
        address = served.address();
    }

    @Override
    public void shutdown() {
        Served served = this.served;
        this.served = null;
        if (served != null) {
            try {
                served.stop();
            } catch (IOException stuck) {
                throw new UncheckedIOException(stuck);
            }
        }
        if (zkServer != null) {
            zkServer.shutdown();
        }
    }

    @Override
    public void join() throws InterruptedException {
        Served served = this.served;
        if (served != null) {
            served.join();
        }
    }

    @Override
    public int getLocalPort() {
        return address.getPort();
    }

    @Override
    public InetSocketAddress getLocalAddress() {
        return address;
    }

    @Override
    public void start() {}

    @Override
    public void reconfigure(InetSocketAddress address) {}

    @Override
    public Iterable<ServerCnxn> getConnections() {
        return Collections.emptyList();
    }

    @Override
    public boolean closeSession(long session, ServerCnxn.DisconnectReason reason) {
        return false;
    }

    @Override
    public void closeAll(ServerCnxn.DisconnectReason reason) {}

    @Override
    public int getMaxClientCnxnsPerHost() {
        return mostOfOne;
    }

    @Override
    public void setMaxClientCnxnsPerHost(int max) {
        mostOfOne = max;
    }

    @Override
    public int getSocketListenBacklog() {
        return 0;
    }

    @Override
    public void resetAllConnectionStats() {}

    @Override
    public Iterable<Map<String, Object>> getAllConnectionInfo(boolean brief) {
        return Collections.emptyList();
    }
}
