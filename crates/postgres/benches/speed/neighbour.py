"""An hour's worth of jobs in Procrastinate: usage: neighbour.py CONNECTION COUNT. Prints what it measured as JSON."""

import asyncio
import json
import statistics
import sys
import time

import procrastinate


async def main(connection, count):
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=connection))
    acted = asyncio.Queue()

    @app.task(queue="hour", name="handle")
    async def handle(content):
        pass

    @app.task(queue="latency", name="act")
    async def act():
        acted.put_nowait(time.perf_counter())

    content = "x" * 300
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        began = time.perf_counter()
        for _ in range(count):
            await handle.defer_async(content=content)
        pushed = count / (time.perf_counter() - began)
        began = time.perf_counter()
        await app.run_worker_async(queues=["hour"], wait=False, concurrency=1, install_signal_handlers=False)
        handled = count / (time.perf_counter() - began)
        worker = asyncio.create_task(
            app.run_worker_async(queues=["latency"], wait=True, concurrency=1, install_signal_handlers=False)
        )
        times = []
        for n in range(31):
            await asyncio.sleep(0.05)
            began = time.perf_counter()
            await act.defer_async()
            at = await acted.get()
            # The first one waits for the worker's start.
            if n:
                times.append(at - began)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    print(json.dumps({"pushed": pushed, "handled": handled, "latency": statistics.median(times)}))


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
