package org.apache.curator.test;

import java.io.BufferedReader;
import java.io.Closeable;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.concurrent.TimeUnit;

/** Stands in for Curator's own: a server of LOCKKEEPER, started, stopped and started again as the tests ask. */
public class TestingServer implements Closeable {
    private final InstanceSpec spec;
    private Process process;

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
        if (process != null) {
            return;
        }
        String data = new File(spec.getDataDirectory(), "lockkeeper").getPath();
        String listen = "127.0.0.1:" + spec.getPort();
        ProcessBuilder builder = new ProcessBuilder(System.getenv("LOCKKEEPER"), "serve", "--listen", listen, "--data",
                data, "--accounts", System.getenv("LOCKKEEPER_ACCOUNTS"));
        process = builder.redirectError(ProcessBuilder.Redirect.DISCARD).start();
        Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
        // It prints its address once it serves.
        BufferedReader said = new BufferedReader(new InputStreamReader(process.getInputStream()));
        if (!listen.equals(said.readLine())) {
            throw new IOException("the server does not start on " + listen);
        }
    }

    public synchronized void stop() throws IOException {
        if (process == null) {
            return;
        }
        process.destroy();
        try {
            if (!process.waitFor(30, TimeUnit.SECONDS)) {
                throw new IOException("the server does not stop");
            }
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
        process = null;
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
