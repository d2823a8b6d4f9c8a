/// <reference lib="webworker" />
import type { WorkerOrder } from './desk'
import { createDesk } from './desk'

const scope = self as unknown as DedicatedWorkerGlobalScope
const desk = createDesk((report, transfer = []) => scope.postMessage(report, transfer))
scope.onmessage = ({ data }: MessageEvent<WorkerOrder>): void => desk(data)
