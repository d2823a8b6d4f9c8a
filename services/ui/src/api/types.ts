/** Short names for the schemas that the views use. */
import type { components } from './schema'

type Schemas = components['schemas']

export type Job = Schemas['Job']
export type JobState = Schemas['JobState']
export type Rank = Schemas['Rank']
export type Metrics = Schemas['Metrics']
export type Timeline = Schemas['Timeline']
export type Clock = Schemas['Clock']
export type Finding = Schemas['Finding']
export type Evidence = Schemas['Evidence']
export type Report = Schemas['Report']
export type Role = Schemas['Role']
export type Session = Schemas['Session']
export type TraceControl = Schemas['TraceControl']
export type TraceControlStatus = Schemas['TraceControlStatus']
export type TraceFormat = Schemas['TraceFormat']
export type LiveEvent = Schemas['Event']
