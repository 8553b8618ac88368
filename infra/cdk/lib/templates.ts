/** Where the templates are: constructs include them and describe no resource of their own. */
import { existsSync } from 'fs';
import { dirname, join } from 'path';

/** A checkout of gpuhook: the nearest folder above that holds its templates. */
export function checkout(): string {
  let folder = __dirname;
  while (!existsSync(join(folder, 'template.yaml')) || !existsSync(join(folder, 'infra', 'host.yaml'))) {
    const above = dirname(folder);
    if (above === folder) {
      throw new Error(`no template.yaml and infra/host.yaml in any folder above ${__dirname}; name it as checkout`);
    }
    folder = above;
  }
  return folder;
}

/** Parameters that were given a value; the others are left to the template. */
export function given(parameters: Record<string, string | number | undefined>): Record<string, string | number> {
  const set = Object.entries(parameters).filter(([, value]) => value !== undefined);
  return Object.fromEntries(set) as Record<string, string | number>;
}
