/** Splits the rows of a stage into sheets of paper. */

const EDGE = 2;

/**
 * Split all rows into sheets of at most `room` pixels, the first of at most `first`: [{ scroll, height, tracks }]. Only a
 * GPU that is higher than a sheet is split; each sheet begins with a strip. No GPU may be pinned.
 */
export function sheetsOf(stage, first, room) {
  const sheets = [], headed = new Map(stage.allHeadings.map((heading) => [heading.tracks.find((track) => !stage.hidden[track]), heading]));
  let sheet = null;
  for (const strip of stage.allStrips)
    strip.tracks.filter((track) => !stage.hidden[track]).forEach((track, i) => {
      const block = stage.blockOf.get(track), rows = block.rows.filter(({ h }) => h), begin = headed.get(track)?.top ?? block.top;
      const pieces = block.h > room ? rows.map(({ top, h }) => ({ top, bottom: top + h })) : [{ top: begin, bottom: block.top + block.h }];
      pieces.forEach(({ top, bottom }, j) => {
        const scroll = i || j ? top - stage.above : strip.top - EDGE, limit = sheets.length > 1 ? room : Math.max(first, bottom - scroll);
        if (!sheet || bottom - sheet.scroll > limit) sheets.push((sheet = { scroll, height: 0, tracks: [] }));
        sheet.height = bottom - sheet.scroll + EDGE;
        if (sheet.tracks.at(-1) !== track) sheet.tracks.push(track);
      });
    });
  return sheets;
}
