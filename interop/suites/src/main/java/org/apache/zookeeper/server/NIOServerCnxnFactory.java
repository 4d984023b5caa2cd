package org.apache.zookeeper.server;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * Stands in for the part of ZooKeeper's own server that listens: a server of LOCKKEEPER listens in its place. Whatever server
 * the tests make in this process is there for its JMX beans only, and never hears of a client.
 */
public class NIOServerCnxnFactory extends ServerCnxnFactory {
    private InetSocketAddress address;
    private Process process;

    @Override
    public void configure(InetSocketAddress address, int maxClients, int backlog, boolean secure) {
        this.address = address;
    }

    @Override
    public void startup(ZooKeeperServer server, boolean startServer) throws IOException, InterruptedException {
        setZooKeeperServer(server);
        server.startdata();
        server.startup();
        File data = new File(server.getTxnLogFactory().getSnapDir(), "lockkeeper");
        String listen = "127.0.0.1:" + address.getPort();
        List<String> command = new ArrayList<>(List.of(System.getenv("LOCKKEEPER"), "serve", "--listen", listen));
        command.addAll(List.of("--data", data.getPath(), "--accounts", System.getenv("LOCKKEEPER_ACCOUNTS")));
        if (Boolean.getBoolean("zookeeper.enforceQuota")) {
            command.add("--enforce-quotas");
        }
        process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.DISCARD).start();
        Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
        // It prints its address once it serves.
        BufferedReader said = new BufferedReader(new InputStreamReader(process.getInputStream()));
        if (!listen.equals(said.readLine())) {
            throw new IOException("the server does not start on " + listen);
        }
    }

    @Override
    public void shutdown() {
        if (process != null) {
            process.destroy();
            try {
                process.waitFor(30, TimeUnit.SECONDS);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
            process = null;
        }
        if (zkServer != null) {
            zkServer.shutdown();
        }
    }

    @Override
    public void join() throws InterruptedException {
        Process process = this.process;
        if (process != null) {
            process.waitFor();
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
        return 0;
    }

    @Override
    public void setMaxClientCnxnsPerHost(int max) {}

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
