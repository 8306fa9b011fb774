/**
 * A file that is whole or not there: written beside its final name, put on disk, then renamed. Internal to the exports.
 *
 * @since 0.1.0
 */
import { randomBytes } from "node:crypto"
import * as fs from "node:fs/promises"
import { basename, dirname, join } from "node:path"
import { Effect } from "effect"
import { InputError } from "../services/Errors.ts"

/** Adds to the end of the file. @since 0.1.0 */
export type Append = (data: string | Uint8Array) => Effect.Effect<void, InputError>

/**
 * Writes a file by what `body` appends. It replaces an older one in one step, has mode 0600, and is on disk when the effect ends; after a failure or an interruption nothing is
 * left, and after a kill at most the hidden draft beside it. A symlink is refused.
 *
 * @since 0.1.0
 */
export const write = <A, E, R>(
  path: string,
  body: (append: Append) => Effect.Effect<A, E, R>
): Effect.Effect<A, InputError | E, R> => {
  const temporary = join(dirname(path), `.${basename(path)}.${randomBytes(6).toString("hex")}.tmp`)
  const attempt = <B>(run: () => Promise<B>) =>
    Effect.tryPromise({ try: run, catch: (error) => unwritable(path, error) })

  const publish = (file: fs.FileHandle) =>
    attempt(() => file.sync()).pipe(
      Effect.zipRight(attempt(() => fs.rename(temporary, path))),
      Effect.zipRight(attempt(() => syncDirectory(dirname(path)))),
      Effect.uninterruptible
    )

  return Effect.acquireUseRelease(
    Effect.zipRight(
      refuseSymlink(path),
      attempt(() => fs.open(temporary, "wx", 0o600))
    ),
    (file) =>
      Effect.tap(
        body((data) => attempt(() => file.appendFile(data))),
        () => publish(file)
      ),
    // After the rename there is no temporary file any more.
    (file) =>
      Effect.promise(() =>
        file
          .close()
          .finally(() => fs.rm(temporary, { force: true }))
          .catch(() => undefined)
      )
  )
}

const refuseSymlink = (path: string): Effect.Effect<void, InputError> =>
  Effect.promise(() =>
    fs.lstat(path).then(
      (stat) => stat.isSymbolicLink(),
      () => false
    )
  ).pipe(Effect.flatMap((link) => (link ? unwritable(path, new Error("it is a symbolic link")) : Effect.void)))

/** A rename is durable once its directory is. Windows cannot open one. */
const syncDirectory = async (path: string): Promise<void> => {
  if (process.platform === "win32") return
  const directory = await fs.open(path)
  await directory.sync().finally(() => directory.close())
}

const unwritable = (path: string, error: unknown): InputError =>
  new InputError({
    reason: "unreadable",
    message: `${path} cannot be written: ${error instanceof Error ? error.message : String(error)}`,
    file: path,
    fix: "name a regular file, in a directory that exists, on a disk with space"
  })
