package org.apache.curator.test;

import java.io.Closeable;
import java.io.File;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.List;
import lockkeeper.interop.Served;

/** Replaces Curator's own class with a Lockkeeper server, which the tests start, stop and restart. */
public class TestingServer implements Closeable {
    private final InstanceSpec spec;
    private Served served;

    public TestingServer() throws Exception {
        this(true);
    }

    public TestingServer(boolean start) throws Exception {
        this(InstanceSpec.newInstanceSpec(), start);
    }

    public TestingServer(int port) throws Exception {
        this(port, true);
    }

    public TestingServer(int port, boolean start) throws Exception {
        this(port, null, start);
    }

    public TestingServer(int port, File directory) throws Exception {
        this(port, directory, true);
    }

    public TestingServer(int port, File directory, boolean start) throws Exception {
        this(new InstanceSpec(directory, port, -1, -1, true, -1), start);
    }

    public TestingServer(InstanceSpec spec, boolean start) throws Exception {
        this.spec = spec;
        if (start) {
            start();
        }
    }

    TestingZooKeeperServer getTestingZooKeeperServer() {
        throw new UnsupportedOperationException("this server is not in this process");
    }

    public int getPort() {
        return spec.getPort();
    }

    public File getTempDirectory() {
        return spec.getDataDirectory();
    }

    public String getConnectString() {
        return spec.getConnectString();
    }

    public synchronized void start() throws Exception {
        if (served != null) {
            return;
        }
        served = new Served(new InetSocketAddress(spec.getPort()), spec.getDataDirectory(), List.of());
    }

    public synchronized void stop() throws IOException {
        if (served == null) {
            return;
        }
        served.stop();
        served = null;
    }

    public void restart() throws Exception {
        stop();
        start();
    }

    @Override
    public void close() throws IOException {
        stop();
        if (spec.deleteDataDirectoryOnClose()) {
            DirectoryUtils.deleteRecursively(spec.getDataDirectory());
        }
    }
}
